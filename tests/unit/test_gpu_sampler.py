"""vLLM's transfers for a GPU machine: code of other GPUs is taken out, parts are checked; numbers of bench.sampler."""

import argparse
import os
import re
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest
import sampler_start

from scripts.gpu.fat_binary import MAGIC, entries, trim

GPU = Path("scripts/gpu").resolve()
PTX, CODE = 1, 2


def entry(kind: int, architecture: int, code: bytes) -> bytes:
    head = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(code), 0, 0, 0, 0, architecture)
    return head.ljust(64, b"\0") + code


def container(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def library(*containers: bytes) -> bytearray:
    """An ELF file with two sections: names, and the fat binaries with zeros between them."""
    names, fat = b"\0.nv_fatbin\0.names\0", bytes(8).join(containers)
    start = 0x40 + len(names)
    table = start + len(fat)
    head = bytearray(0x40)
    struct.pack_into("<Q", head, 0x28, table)
    struct.pack_into("<HHH", head, 0x3A, 64, 2, 1)
    sections = struct.pack("<IIQQQQIIQQ", 1, 0, 0, 0, start, len(fat), 0, 0, 0, 0)
    sections += struct.pack("<IIQQQQIIQQ", 12, 0, 0, 0, 0x40, len(names), 0, 0, 0, 0)
    return head + names + fat + sections


def test_code_of_other_gpus_becomes_zeros_in_its_place() -> None:
    made = library(
        container(entry(PTX, 80, b"p" * 8), entry(CODE, 80, b"a" * 24), entry(CODE, 90, b"h" * 16)),
        container(entry(CODE, 90, b"H" * 8), entry(CODE, 100, b"b" * 32)),
    )
    before = bytes(made)
    assert trim(made, 90) == (24, 64)
    kept = {
        bytes(made[place : place + size]) for kind, arch, place, size in entries(made) if (kind, arch) == (CODE, 90)
    }
    assert kept == {b"h" * 16, b"H" * 8}
    assert list(entries(made)) == list(entries(before)) and len(made) == len(before)
    changed = [i for i, (a, b) in enumerate(zip(before, made, strict=True)) if a != b]
    assert len(changed) == 64 and not any(made[i] for i in changed)


def test_the_packages_of_the_sampler_are_locked_with_hashes() -> None:
    text = (GPU / "sampler.lock").read_text()
    locked = re.findall(r"^([\w.-]+)==\S+ \\\n    --hash=sha256:", text, re.MULTILINE)
    assert "vllm" in locked and len(locked) == text.count("==")
    assert not set(locked) & set((GPU / "sampler.there").read_text().split())
    asked = re.findall(r"^([\w.-]+)", re.sub(r"#.*", "", (GPU / "sampler.in").read_text()), re.MULTILINE)
    assert {name.replace("_", "-") for name in asked} <= set(locked)


def part(folder: Path, number: int, parts: dict[str, bytes]) -> Path:
    made = folder / f"carryv{number}"
    made.mkdir()
    for name, content in parts.items():
        (folder / name).write_bytes(content)
    sums = subprocess.run(["sha256sum", *parts], cwd=folder, capture_output=True, text=True, check=True).stdout
    (made / "parts").write_text(sums)
    (made / f"part.0{number}").write_bytes(parts[f"part.0{number}"])
    for script in ("unpack_sampler.sh", "take_in.sh"):
        shutil.copy(GPU / script, made)
    return made


def test_parts_of_vllm_become_an_environment_when_the_last_one_is_there(tmp_path: Path) -> None:
    (tmp_path / "site" / "vllm").mkdir(parents=True)
    (tmp_path / "site" / "vllm" / "__init__.py").write_text("print('imported', __file__)\n")
    with tarfile.open(tmp_path / "sampler.tar.xz", "w:xz") as packed:
        packed.add(tmp_path / "site", ".")
    with tarfile.open(tmp_path / "all.tar", "w") as joined:
        joined.add(tmp_path / "sampler.tar.xz", "sampler.tar.xz")
    data = (tmp_path / "all.tar").read_bytes()
    parts = {"part.01": data[:300], "part.02": data[300:]}
    first, second = (part(tmp_path, number, parts) for number in (1, 2))
    project = tmp_path / "project"
    env = os.environ | {"SAMPLER_WORK": str(tmp_path / "work"), "PROJECT": str(project), "CHECK": "0"}

    def unpack(folder: Path) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(folder / "unpack_sampler.sh")]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    done = unpack(second)
    assert done.returncode == 0 and "carryv2 taken in; still missing: part.01" in done.stdout
    (first / "part.01").write_bytes(b"?" * 300)
    done = unpack(first)
    assert done.returncode == 1 and "part.01 is damaged" in done.stdout and not project.exists()
    (first / "part.01").write_bytes(parts["part.01"])
    assert unpack(first).returncode == 0
    python = project / "server" / "vllm" / ".venv" / "bin" / "python"
    said = subprocess.run([python, "-c", "import vllm"], capture_output=True, text=True, check=True).stdout
    assert str(python.parents[1] / "lib" / "python3.12" / "site-packages") in said


def test_on_a_shared_gpu_vllm_takes_the_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, first in (("1", "1"), ("3,2", "3"), ("", "0"), ("GPU-1a, GPU-2b", "GPU-1a")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert sampler_start.first_gpu() == first
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert sampler_start.first_gpu() == "0"


def on_three_gpus(folder: Path, script: str, **env: str) -> str:
    """What a script says with the functions of scripts/lib/server.sh, on a machine of three GPUs."""
    python = folder / "server" / "vllm" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    listed = "case $1 in -L) printf 'GPU 0\\nGPU 1\\nGPU 2\\n' ;; *) printf '0\\n1\\n2\\n' ;; esac"
    for file, text in ((python, "exit"), (folder / "nvidia-smi", listed)):
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)
    script = f"source scripts/lib/common.sh; source scripts/lib/server.sh; ROOT={folder}; {script}"
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], env={"PATH": path} | env, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()


def trainers_gpus(folder: Path, visible: str, own: str, tp: int = 1) -> str:
    """What CUDA_VISIBLE_DEVICES is for the trainer with VLLM_GPUS=`own`."""
    script = f'choose_sampler vllm {tp}; echo "$CUDA_VISIBLE_DEVICES"'
    return on_three_gpus(folder, script, CUDA_VISIBLE_DEVICES=visible, VLLM_GPUS=own)


def test_a_model_is_not_spread_over_more_gpus_than_the_server_sees(tmp_path: Path) -> None:
    assert on_three_gpus(tmp_path, "choose_device 4").startswith("error: TP 4: this machine has 3 GPU(s)")
    few = on_three_gpus(tmp_path, "choose_device 3", CUDA_VISIBLE_DEVICES="2,0")
    assert few == "error: TP 3: CUDA_VISIBLE_DEVICES=2,0 shows 2 GPU(s); give a TP of at most 2"
    assert on_three_gpus(tmp_path, "choose_device 2; echo good", CUDA_VISIBLE_DEVICES="2,0") == "good"


@pytest.mark.parametrize("flags", ["--tensor-parallel-size 2", "-tp=4", "--enforce-eager --tensor_parallel_size 2"])
def test_vllm_on_one_gpu_is_not_started_over_several(flags: str) -> None:
    sampler_start.check_flags("--enforce-eager --tensor-parallel-size 1")
    with pytest.raises(SystemExit, match="each vLLM has one GPU; VLLM_GPUS=1,2"):
        sampler_start.check_flags(flags)


def test_flags_of_vllm_that_cannot_be_read_are_one_line() -> None:
    with pytest.raises(SystemExit, match="VLLM_FLAGS=--a 'b: No closing quotation"):
        sampler_start.check_flags("--a 'b")


def test_the_trainer_keeps_to_its_gpus_beside_those_of_vllm(tmp_path: Path) -> None:
    assert trainers_gpus(tmp_path, "", "1") == "0,2"
    assert trainers_gpus(tmp_path, "2,1", "1") == "2"
    assert trainers_gpus(tmp_path, "0,1,2", "1", 2) == "0,2"


def test_the_trainer_shares_gpus_with_vllm_where_it_has_too_few_of_its_own(tmp_path: Path) -> None:
    assert trainers_gpus(tmp_path, "1", "1") == "1"
    assert trainers_gpus(tmp_path, "0,1", "0,1") == "0"
    assert trainers_gpus(tmp_path, "0,1,2", "0,1", 2) == "2,0"


@pytest.mark.parametrize(
    ("visible", "own", "shared"), [("0", "0,1", True), ("0", "1,2", False), ("", "", True), ("2,0", "0", True)]
)
def test_memory_is_divided_where_a_gpu_is_shared(
    visible: str, own: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert sampler_start.shares_gpu(argparse.Namespace(vllm_gpus=own)) == shared


def test_vllm_is_considered_where_it_is_installed_and_one_gpu_is_shared(tmp_path: Path) -> None:
    def default(tp: int = 1, **env: str) -> str:
        return on_three_gpus(tmp_path, f"choose_device {tp}; default_sampler {tp}", **env)

    assert default() == "auto"
    assert default(2) == default(JAX_PLATFORMS="cpu") == "jax"
    assert default(VLLM_GPUS="1") == default(VLLM_URLS="http://h:1") == "vllm"
    wasted = on_three_gpus(tmp_path, "choose_sampler jax 1", VLLM_GPUS="1")
    assert wasted == "error: VLLM_GPUS=1: SAMPLER=jax samples without vLLM; unset VLLM_GPUS, or SAMPLER"
    missing = f"rm {tmp_path}/server/vllm/.venv/bin/python; default_sampler 1"
    assert on_three_gpus(tmp_path, missing) == "jax"


def test_a_start_deletes_the_compiled_programs_that_were_read_longest_ago(tmp_path: Path) -> None:
    for day, name in enumerate(("last week's-cache", "a-cache", "b-cache", "measured.json")):
        (tmp_path / name).write_bytes(bytes(1000))
        os.utime(tmp_path / name, (day * 86_400, 0))
    on_three_gpus(tmp_path / "root", f"drop_old_programs {tmp_path}; drop_old_programs /none", PROGRAMS_BYTES="2000")
    assert {path.name for path in tmp_path.iterdir()} == {"a-cache", "b-cache", "measured.json", "root"}
