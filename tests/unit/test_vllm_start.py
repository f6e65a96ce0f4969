"""How vLLM starts fast: loaded beside the trainer, and with what its last start has compiled."""

import subprocess
import sys
from pathlib import Path

import pytest
import sampler_start

import sampler
from tests.support.vllm_plan import plan_of

FAKES = {
    "vllm/lora/lora_model.py": "",
    "vllm/lora/model_manager.py": "",
    "vllm/model_executor/layers/logits_processor.py": """
class LogitsProcessor:
    org_vocab_size = 2
    def _get_logits(self, hidden_states, lm_head, embedding_bias):
        return "rounded"
""",
    "torch.py": """
import numpy
bfloat16, float32 = numpy.dtype("float16"), numpy.dtype("float32")
def mm(one, other, out_dtype):
    return one.astype(out_dtype) @ other.astype(out_dtype)
""",
}
HEADS = """
import numpy, torch, unpinned
from types import SimpleNamespace
from vllm.model_executor.layers.logits_processor import LogitsProcessor
class Weight(numpy.ndarray):
    def t(self):
        return self.T
hidden, weight = numpy.full((1, 2), 1.001, torch.bfloat16), numpy.full((3, 2), 7.77, torch.bfloat16).view(Weight)
head, processor = SimpleNamespace(weight=weight, tp_size=1), LogitsProcessor()
logits = processor._get_logits(hidden, head, None)
others = [(hidden, head, hidden), (hidden, SimpleNamespace(weight=weight, tp_size=2), None)]
others += [(hidden, SimpleNamespace(), None)]
others += [(hidden.astype(torch.float32), head, None)]
print(logits.dtype, logits.shape, {processor._get_logits(*one) for one in others})
torch.float32 = "none"
print(processor._get_logits(hidden, head, None), LogitsProcessor._get_logits is unpinned.stock_logits)
"""


def faked(folder: Path) -> Path:
    """What server/vllm/unpinned.py imports, and nothing else of it."""
    for name, text in FAKES.items():
        Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_text(text)
    return folder


def test_on_a_shared_gpu_a_worker_waits_until_the_trainer_has_its_memory(tmp_path: Path) -> None:
    marker = tmp_path / "ready"
    env = sampler.environment(plan_of(tmp_path, gpus=("0",), after=str(marker)), 0)
    path = f"{env['PYTHONPATH']}:{faked(tmp_path)}"
    code = f"print('begun', flush=True); import os, unpinned; print(os.path.exists({str(marker)!r}))"
    worker = subprocess.Popen([sys.executable, "-c", code], env=env | {"PYTHONPATH": path}, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"begun\n"
    marker.touch()
    assert worker.communicate(timeout=60)[0] == b"True\n"


def test_vllms_logits_are_float32_where_its_output_layer_is_plain(tmp_path: Path) -> None:
    env = sampler.environment(plan_of(tmp_path, gpus=("0",)), 0)
    path = f"{env['PYTHONPATH']}:{faked(tmp_path)}"
    done = subprocess.run([sys.executable, "-c", HEADS], env=env | {"PYTHONPATH": path}, capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert said[0] == "float32 (1, 2) {'rounded'}", done.stderr
    assert said[1].startswith("logits are rounded: ") and said[2] == "rounded True", "without such a product"


def test_a_worker_is_forked_unless_the_user_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def method() -> str:
        return sampler.environment(plan_of(tmp_path, gpus=("0",)), 0)["VLLM_WORKER_MULTIPROC_METHOD"]

    assert method() == "fork"
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    assert method() == "spawn"


def test_the_key_is_that_of_the_last_start_which_vllms_compiled_programs_are_found_by(tmp_path: Path) -> None:
    key = sampler_start.own_key(tmp_path)
    assert len(key) == 32 and sampler_start.own_key(tmp_path) == key
    assert Path(tmp_path, "vllm_key").stat().st_mode & 0o077 == 0
    Path(tmp_path, "vllm_key").write_text("")  # a start that was killed
    assert len(sampler_start.own_key(tmp_path)) == 32
