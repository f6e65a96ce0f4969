"""How vLLM starts fast: loaded beside the trainer, and with what its last start has compiled."""

import subprocess
import sys
from pathlib import Path

import sampler_start

import sampler
from tests.unit.test_vllm_supervisor import plan_of


def test_on_a_shared_gpu_a_worker_waits_until_the_trainer_has_its_memory(tmp_path: Path) -> None:
    marker = tmp_path / "ready"
    for name in ("vllm/__init__.py", "vllm/lora/__init__.py", "vllm/lora/lora_model.py", "vllm/lora/model_manager.py"):
        Path(tmp_path, name).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path, name).touch()
    env = sampler.environment(plan_of(tmp_path, gpus=("0",), after=str(marker)), 0)
    path = f"{env['PYTHONPATH']}:{tmp_path}"
    code = f"print('begun', flush=True); import os, unpinned; print(os.path.exists({str(marker)!r}))"
    worker = subprocess.Popen([sys.executable, "-c", code], env=env | {"PYTHONPATH": path}, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"begun\n"
    marker.touch()
    assert worker.communicate(timeout=60)[0] == b"True\n"


def test_the_key_is_that_of_the_last_start_which_vllms_compiled_programs_are_found_by(tmp_path: Path) -> None:
    key = sampler_start.own_key(tmp_path)
    assert len(key) == 32 and sampler_start.own_key(tmp_path) == key
    assert Path(tmp_path, "vllm_key").stat().st_mode & 0o077 == 0
    Path(tmp_path, "vllm_key").write_text("")  # a start that was killed
    assert len(sampler_start.own_key(tmp_path)) == 32
