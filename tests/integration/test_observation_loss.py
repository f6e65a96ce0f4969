"""The gradient of policy loss and observations together, on a real server in float32, against the model in float64."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import tinker
from safetensors.numpy import load_file, save_file

from harbortrainer.backend.contract import TINKER_DOCUMENTS
from harbortrainer.backend.datum import build_datums
from harbortrainer.cli.main import main
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.observations import as_targets, weighed
from tests.support.engine_parts import TOKENS, adapters
from tests.support.exact_policy import exact_logprobs
from tests.support.tiers import first

COEFFICIENT = 0.5  # of the same size as the policy loss, so that neither hides in the other
AS_IT_IS = tinker.AdamParams(learning_rate=1e9, beta1=0.9, beta2=0.95, eps=1e9)  # B becomes minus its gradient


def sequences(model: Path) -> list[TrainingSequence]:
    """Answers and outputs take turns; ratios are not 1."""
    dice, made = np.random.default_rng(0), []
    for number, tokens in enumerate(TOKENS[:2]):
        n = len(tokens)
        mask, observed = np.zeros(n, np.bool_), np.zeros(n, np.float32)
        for start in range(4, n - 4, 8):
            mask[start : start + 4], observed[start + 5 : start + 7] = True, 1
        own = np.array([0, *of_targets(exact_logprobs(model, tokens), tokens)])
        sampled = np.where(mask, np.minimum(own + dice.normal(0, 0.3, n), -1e-3), 0).astype(np.float32)
        advantages = np.where(mask, dice.normal(0, 1, n), 0).astype(np.float32)
        made.append(TrainingSequence(str(number), np.array(tokens, np.int32), mask, sampled, advantages, observed))
    return weighed(made, COEFFICIENT)


def of_targets(logprobs: np.ndarray, tokens: list[int]) -> np.ndarray:
    return logprobs[np.arange(len(tokens) - 1), tokens[1:]]


def exact_loss(model: Path, sequences_D: list[TrainingSequence]) -> float:
    """- sum of ratio * advantage, - sum of weight * log p of the observations."""
    total = 0.0
    for s in sequences_D:
        logs = np.array([0, *of_targets(exact_logprobs(model, s.tokens_T.tolist()), s.tokens_T.tolist())])
        total -= float((np.exp(logs - s.logprobs_T) * s.advantages_T)[s.mask_T].sum())
        assert s.observed_T is not None
        total -= float((logs * s.observed_T).sum())
    return total


def slope(model: Path, folder: Path, parts: dict[str, tuple[np.ndarray, np.ndarray]], data: list) -> float:
    """Of the exact loss along B = t * D, from a fresh adapter's B = 0. `parts`: scale * A, D by weight."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text((model / "config.json").read_text())
    base = {name: value.astype(np.float64) for name, value in load_file(model / "model.safetensors").items()}
    h = 1e-4 / np.sqrt(sum(float((d**2).sum()) for _, d in parts.values()))
    losses = []
    for t in (h, -h):
        moved = {name: base[name] + t * d @ a for name, (a, d) in parts.items()}
        save_file(base | moved, folder / "model.safetensors")
        losses.append(exact_loss(folder, data))
    return (losses[0] - losses[1]) / (2 * h)


@pytest.mark.parametrize("own_ratio", first(1, [True, False]))
async def test_the_combined_gradient_is_that_of_the_model_in_float64(
    server_url: str, tiny_model_dir: Path, tmp_path: Path, own_ratio: bool
) -> None:
    """In one pass on this project's server, and by a forward pass as on Tinker; along itself and its parts."""
    data = sequences(tiny_model_dir)
    async with adapters(server_url, tiny_model_dir) as (_, client):
        scored = None
        if not own_ratio:
            output = await client.forward(
                build_datums(data, "cross_entropy", TINKER_DOCUMENTS, 10**6, None), "cross_entropy"
            )
            scored = [np.array([0, *one["logprobs"].to_numpy()], np.float32) for one in output.loss_fn_outputs]
        datums = build_datums(as_targets(data, scored), "importance_sampling", TINKER_DOCUMENTS, 10**6, None)
        await client.forward_backward(datums, "importance_sampling")
        await client.optim_step(AS_IT_IS)
        path = (await client.save_state("end")).path
        words = ["backend=skyrl-tx", f"skyrl_tx_url={server_url}", f"checkpoint={path}", f"to={tmp_path / 'out'}"]
        assert await asyncio.to_thread(main, ["export", *words]) == 0
    adapter = load_file(tmp_path / "out" / "adapter_model.safetensors")
    about = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    scale = about["lora_alpha"] / about["r"]
    a_of = {n.removesuffix(".lora_A.weight"): v.astype(np.float64) for n, v in adapter.items() if "lora_A" in n}
    names = {n: n.removeprefix("base_model.model.") + ".weight" for n in a_of}
    gradient = {n: -adapter[f"{n}.lora_B.weight"].astype(np.float64) for n in a_of}
    dice = np.random.default_rng(1)
    # no direction in which parts of the gradient cancel: there float32 has fewer digits
    for direction in (gradient, *({n: dice.random(g.shape) * g for n, g in gradient.items()} for _ in range(3))):
        parts = {names[n]: (scale * a_of[n], direction[n]) for n in a_of}
        mine = sum(float((gradient[n] * direction[n]).sum()) for n in a_of)
        assert mine == pytest.approx(slope(tiny_model_dir, tmp_path / "moved", parts, data), rel=1e-4)
