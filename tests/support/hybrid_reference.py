"""A tiny Qwen3.5 with two adapters, and what transformers computes for them in float32: hybrid_reference.json.

With torch and transformers installed this writes the file, in the root:  python -m tests.support.hybrid_reference

Answers are greedy and computed without a cache: nothing that a sampler keeps between two tokens is part of them.
"""

import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from scripts.models import tiny_hybrid

FILE = Path(__file__).with_suffix(".json")
TOKENIZER = Path("models/quickstart")
UNPADDED = 128  # tokens, a length to which the server pads prompts
LENGTHS = (1, 2, 3, 5, 64, 100, 127, UNPADDED, 129, 400, 700)  # of prompts
NEW = 24
TRAINED = (7, 33, 90, 129)  # tokens of the datums
RANK, ALPHA = 4, 8
ADAPTERS = ("", "one", "two")  # "": the base model
LINEAR = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
SHARED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}  # layers that skyrl computes as one
DIRECTIONS = 4  # in which a gradient is compared


def ids(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(1000 * seed + length).integers(5, 250, length).tolist()


def weights(length: int) -> list[float]:
    """Of a datum's targets: mixed ones."""
    return [round(0.25 * (place % 5), 2) for place in range(length)]


def modules(shape: tiny_hybrid.Shape) -> dict[str, tuple[int, int]]:
    """Output and input of each linear layer of a text model."""
    found = tiny_hybrid.places(1, shape, "model.").items()
    names = {*LINEAR, *ATTENTION, *MLP}
    return {name.removesuffix(".weight"): (place[0], place[1]) for name, place in found if name.split(".")[-2] in names}


def adapter(name: str, shape: tiny_hybrid.Shape) -> dict[str, np.ndarray]:
    """Its matrices under the names of peft, without their prefix."""
    found: dict[str, np.ndarray] = {}
    for number, (module, (outputs, inputs)) in enumerate(modules(shape).items()):
        rng = np.random.default_rng([len(name), ord(name[0]), number])
        layer, _, part = module.rpartition(".")
        found[f"{module}.lora_A.weight"] = (rng.standard_normal((RANK, inputs)) * inputs**-0.5).astype("f4")
        if part in SHARED:
            found[f"{module}.lora_A.weight"] = found[f"{layer}.{SHARED[part]}.lora_A.weight"]
        found[f"{module}.lora_B.weight"] = (0.1 * rng.standard_normal((outputs, RANK))).astype("f4")
    return found


def write_adapter(name: str, file: Path, shape: tiny_hybrid.Shape) -> None:
    """As a sampler checkpoint."""
    import safetensors.numpy

    tensors = {f"base_model.model.{key}": value for key, value in adapter(name, shape).items()}
    files = {"adapter_model.safetensors": safetensors.numpy.save(tensors)}
    files["adapter_config.json"] = json.dumps({"r": RANK, "lora_alpha": ALPHA, "peft_type": "LORA"}).encode()
    with tarfile.open(file, "w:gz") as archive:
        for member, content in files.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def along(gradient: np.ndarray, number: int) -> list[float]:
    """Its length, and its products with random directions of length 1."""
    directions = np.random.default_rng(number).standard_normal((DIRECTIONS, gradient.size))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    exact = gradient.astype(np.float64).ravel()
    return [float(np.linalg.norm(exact)), *(directions @ exact).tolist()]


class Reference:
    """transformers' model with adapters of its own making."""

    def __init__(self, directory: Path, shape: tiny_hybrid.Shape) -> None:
        import torch  # pyright: ignore[reportMissingImports]
        from transformers import AutoModelForCausalLM  # pyright: ignore[reportAttributeAccessIssue]

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        self.adapters = {
            name: {key: torch.from_numpy(value).requires_grad_() for key, value in adapter(name, shape).items()}
            for name in ADAPTERS[1:]
        }
        for own in self.adapters.values():  # one matrix, whose gradient is the sum
            for key in own:
                layer, _, part = key.removesuffix(".lora_A.weight").rpartition(".")
                if key.endswith("lora_A.weight") and part in SHARED:
                    own[key] = own[f"{layer}.{SHARED[part]}.lora_A.weight"]
        self.name = ""
        for module in modules(shape):
            self.model.get_submodule(module).register_forward_hook(self._added(module))

    def _added(self, module: str) -> Any:
        def hook(_: Any, inputs: Any, output: Any) -> Any:
            if not self.name:
                return output
            a, b = (self.adapters[self.name][f"{module}.lora_{part}.weight"] for part in "AB")
            return output + inputs[0] @ a.T @ b.T * (ALPHA / RANK)

        return hook

    def logprobs(self, tokens: list[int]) -> Any:
        """Of every word behind every token, (tokens, vocabulary)."""
        logits = self.model(self.torch.tensor([tokens]), use_cache=False).logits[0]
        return self.torch.log_softmax(logits.double(), -1)

    def prompt(self, tokens: list[int]) -> list[float]:
        found = self.logprobs(tokens)[:-1].gather(1, self.torch.tensor(tokens[1:])[:, None])[:, 0]
        return [round(value, 6) for value in found.tolist()]

    def answer(self, tokens: list[int]) -> list[Any]:
        """The likeliest NEW tokens, and their log-probabilities."""
        text, found = list(tokens), []
        for _ in range(NEW):
            best = self.logprobs(text)[-1].max(0)
            text.append(int(best.indices))
            found.append(round(float(best.values), 6))
        return [text[len(tokens) :], found]

    def gradients(self, name: str) -> dict[str, list[float]]:
        self.name, own = name, self.adapters[name]
        for length in TRAINED:
            tokens = ids(length + 1, seed=1)
            chosen = self.logprobs(tokens[:-1]).gather(1, self.torch.tensor(tokens[1:])[:, None])[:, 0]
            (-(chosen * self.torch.tensor(weights(length))).sum()).backward()
        return {key: along(value.grad.numpy(), number) for number, (key, value) in enumerate(own.items())}


def computed() -> dict[str, Any]:
    shape = tiny_hybrid.SHAPES["tiny"]
    with tempfile.TemporaryDirectory() as folder:
        tiny_hybrid.write(TOKENIZER, Path(folder))
        reference = Reference(Path(folder), shape)
    found: dict[str, Any] = {"prompts": {}, "answers": {}}
    for reference.name in ADAPTERS:
        with reference.torch.no_grad():
            found["prompts"][reference.name] = reference.prompt(ids(max(LENGTHS)))
            found["answers"][reference.name] = [reference.answer(ids(length)) for length in LENGTHS]
    return found | {"gradients": reference.gradients("one")}


if __name__ == "__main__":
    FILE.write_text(json.dumps(computed()) + "\n")
