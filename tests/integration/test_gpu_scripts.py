"""scripts/gpu: phases run one after another, transfers are checked, packages are those of the locks."""

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import chz
import numpy as np
import pytest
from safetensors.numpy import save_file

from harbortrainer.config import Config
from scripts.gpu.held_out import lines
from scripts.gpu.packages import normal, wanted
from scripts.models.tiny_model import bfloat16
from scripts.models.to_bfloat16 import convert

GPU = Path("scripts/gpu").resolve()
LOCKS = {"trainer": Path("requirements.lock"), "server": Path("server/requirements-cuda.lock")}


def run(*command: str | Path, **env: str | Path) -> subprocess.CompletedProcess[str]:
    values = {name: str(value) for name, value in env.items()}
    return subprocess.run(
        list(map(str, command)), env=os.environ | values, capture_output=True, text=True, check=False, timeout=900
    )


def drive(tmp_path: Path, phases: str, **more: str) -> tuple[int, str]:
    """Exit status and drive.log."""
    (tmp_path / "phases").write_text(phases)
    machines = dict.fromkeys(("OUT", "LABEL", "PORT", "MODEL", "TASKS"), tmp_path / "of-the-machine")  # not ours
    env = {"GPU_OUT": tmp_path / "out", "GPU_LABEL": "test", "GPU_PORT": "1"}
    done = run(GPU / "drive.sh", tmp_path / "phases", **machines, **env, **more)
    assert not (tmp_path / "of-the-machine").exists()
    return done.returncode, (tmp_path / "out" / "drive.log").read_text()


@pytest.mark.parametrize("words", [(), ("--sampler",)])
def test_a_fresh_clone_is_told_what_to_set_up_before_anything_is_packed(tmp_path: Path, words: tuple[str, ...]) -> None:
    shutil.copytree("scripts", tmp_path / "scripts")
    done = run(tmp_path / "scripts" / "gpu" / "pack.sh", *words, tmp_path / "t")
    assert done.returncode == 1 and "the environment .venv is missing; run scripts/setup.sh" in done.stderr
    assert not [*(tmp_path / ".state").glob("gpu-parts/*")]


def test_a_failed_phase_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    code, log = drive(
        tmp_path, "# comment\n\none 9 echo first\ntwo 9 echo lost; exit 7\nthree 9 echo $LABEL \\\n  and more\n"
    )
    assert code == 1
    assert [line.split("] ")[1] for line in log.splitlines() if "] start" in line] == [
        f"start {name} (at most 9 s)" for name in ("one", "two", "three")
    ]
    assert re.search(r"FAILED two: status 7 after \d+ s; see two.log", log)
    assert "    test and more\n" in log
    assert log.splitlines()[-1].endswith(f"ALL DONE, 1 failed; results: {tmp_path}/out.tar.gz")
    with tarfile.open(tmp_path / "out.tar.gz") as packed:
        assert {"out/drive.log", "out/one.log", "out/two.log", "out/three.log"} <= set(packed.getnames())


def test_a_needed_phase_that_fails_ends_the_drive(tmp_path: Path) -> None:
    code, log = drive(tmp_path, "one! 9 false\ntwo 9 echo never\n")
    assert code == 1 and "start two" not in log
    assert log.splitlines()[-1].endswith("STOPPED: the rest needs one")


def test_at_its_limit_a_phase_may_save_and_does_the_rest_of_its_command(tmp_path: Path) -> None:
    saves = "bash -c 'trap \"echo saved; exit 0\" TERM; sleep 600 & wait'; echo kept"
    code, log = drive(tmp_path, f"slow 4 {saves}\nnext 90 echo on\n")
    assert code == 1 and "FAILED slow: stopped at its limit of 4 s" in log and "    on\n" in log
    assert (tmp_path / "out" / "slow.log").read_text() == "saved\nkept\n"


def test_a_line_that_is_no_phase_is_named(tmp_path: Path) -> None:
    code, log = drive(tmp_path, "one echo first\n")
    assert code == 1 and "is not NAME SECONDS COMMAND: one echo" in log.splitlines()[-1]


def test_a_drive_that_is_continued_skips_what_is_done(tmp_path: Path) -> None:
    phases = "one! 9 echo first\nserve+! 9 echo again\ntwo 9 test -e $OUT/mended\nthree 9 echo last\n"
    assert drive(tmp_path, phases)[0] == 1
    (tmp_path / "out" / "mended").touch()
    code, log = drive(tmp_path, phases, GPU_RESUME="1")
    assert code == 0, "the failed phase is repeated"
    started = [line.split("] ")[1] for line in log.splitlines() if "] start" in line or "] done before" in line]
    assert started[4:] == [
        "done before: one",
        "start serve (at most 9 s)",
        "start two (at most 9 s)",
        "done before: three",
    ]
    _, log = drive(tmp_path, phases)
    assert "start one (at most 9 s)" in log.rpartition("phases of")[2], "without GPU_RESUME all are done again"


def test_results_stay_small(tmp_path: Path) -> None:
    big = 'head -c 17000000 /dev/urandom >"$OUT/run.log"; head -c 100 /dev/urandom >"$OUT/kept"'
    assert drive(tmp_path, f"big 90 {big}\n")[0] == 0
    assert (tmp_path / "out.tar.gz").stat().st_size < 1_000_000
    with tarfile.open(tmp_path / "out.tar.gz") as packed:
        assert "out/kept" in packed.getnames() and "out/run.log" not in packed.getnames()


def test_a_drive_in_the_background_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "phases").write_text("one 90 sleep 0.3; echo reached\n")
    env = {"GPU_OUT": tmp_path / "out", "GPU_LABEL": "test", "GPU_PORT": "1"}
    assert run(GPU / "wait.sh", "5", **env).returncode == 1  # nothing was started
    assert run(GPU / "drive.sh", "--background", tmp_path / "phases", **env).returncode == 0
    done = run(GPU / "wait.sh", "600", tmp_path / "back", **env)
    assert done.returncode == 0 and "reached" in done.stdout and "ALL DONE, 0 failed" in done.stdout
    assert {file.name for file in (tmp_path / "back").iterdir()} == {"results.tar.gz", "drive.log"}


def test_waiting_ends_at_its_limit_or_at_the_pattern(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "drive.log").write_text("[00:00:00] done serve after 3 s\n")
    (tmp_path / "out" / "sft.log").write_text("step 4\n")
    done = run(GPU / "wait.sh", "1", GPU_OUT=tmp_path / "out", GPU_LABEL="test")
    assert done.returncode == 3 and "step 4" in done.stdout
    assert run(GPU / "wait.sh", "90", "", "done serve", GPU_OUT=tmp_path / "out", GPU_LABEL="test").returncode == 0


def test_a_run_that_cannot_start_says_why_before_anything_is_installed(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/bash\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run(GPU / "run.sh", PATH=path, JAX_PLATFORMS="")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no GPU: nvidia-smi does not work here") and done.stderr.count("\n") == 1
    done = run(GPU / "run.sh", "models/quickstart", tmp_path / "none", PATH=path)
    assert done.returncode == 1 and done.stderr == f"error: there is no file {tmp_path}/none\n"


def transfer(folder: Path, number: int, parts: dict[str, bytes]) -> Path:
    made = folder / f"carry{number}"
    made.mkdir()
    (made / f"part.0{number}").write_bytes(parts[f"part.0{number}"])
    for name, data in parts.items():
        (folder / name).write_bytes(data)
    sums = subprocess.run(["sha256sum", *parts], cwd=folder, capture_output=True, text=True, check=True).stdout
    (made / "parts").write_text(sums)
    for script in ("unpack.sh", "take_in.sh"):
        shutil.copy(GPU / script, made)
    return made


def test_transfers_are_collected_in_any_order_and_checked(tmp_path: Path) -> None:
    parts = {"part.01": b"first", "part.02": b"second"}
    first, second = (transfer(tmp_path, number, parts) for number in (1, 2))
    env = {"WORK": tmp_path / "work", "PROJECT": tmp_path / "project"}
    done = run("bash", second / "unpack.sh", "none", **env)
    assert done.returncode == 0 and "carry2 taken in; still missing: part.01" in done.stdout
    (first / "part.01").write_bytes(b"fir5t")
    done = run("bash", first / "unpack.sh", "none", **env)
    assert done.returncode == 1 and "part.01 is damaged; send its transfer again" in done.stdout
    assert not (tmp_path / "project").exists()


@pytest.mark.parametrize("part", LOCKS)
def test_the_packages_to_send_are_locked(part: str) -> None:
    locked = {normal(name) for name in re.findall(r"^([\w.-]+)==", LOCKS[part].read_text(), re.MULTILINE)}
    assert set(wanted(part)) <= locked
    assert wanted(part) == sorted({normal(name) for name in wanted(part)})


def test_the_recipe_sets_fields_that_exist() -> None:
    text = (GPU / "env.sh").read_text().partition("train() {")[2].partition("\n}")[0]
    named = set(re.findall(r"\b([a-z_]+)=", text)) - {"name", "model", "start"}
    assert {"tasks_dir", "group_size", "learning_rate"} <= named
    assert named - {"init_from"} <= set(chz.chz_fields(Config))


def write_ledger(run_directory: Path, rewards: dict[int, dict[str, list[float]]]) -> Path:
    run_directory.mkdir()
    records: list[dict[str, object]] = []
    for step, tasks in rewards.items():
        for number, (task, values) in enumerate(tasks.items()):
            for member, value in enumerate(values):
                trial = f"e{step:06d}-p{number:02d}-g{member:02d}"
                records.append({"event": "started", "trial": trial, "task": task, "time": 1.0})
                ended = {"outcome": "completed", "reward": value, "fate": "finished", "time": 2.0}
                records.append({"event": "ended", "trial": trial, "task": task, **ended})
    (run_directory / "ledger.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run_directory


def test_seeds_run_at_once_on_gpus_of_their_own(tmp_path: Path) -> None:
    write_ledger(tmp_path / "a", {0: {"sort-9": [0.0, 0.0]}, 2: {"sort-9": [1.0, 0.0]}})
    label = f"seeds-{tmp_path.name}"
    mine = f'mkdir -p "runs/$LABEL-x"; cp {tmp_path}/a/ledger.jsonl "runs/$LABEL-x/"; touch {tmp_path}/at-$PORT'
    both = f"until [ -e {tmp_path}/at-8 ] && [ -e {tmp_path}/at-9 ]; do sleep 0.1; done"  # none ends before the other begins
    (tmp_path / "phases").write_text(
        f'one! 60 {mine}; {both}; echo "$CUDA_VISIBLE_DEVICES,$R_SFT,$R_TRAIN,$TASKS" >{tmp_path}/$PORT\n'
    )
    env = {
        "GPU_LABEL": label,
        "GPU_PORT": "8",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "R_TRAIN": "max_steps=2",
        "GPU_OUT": tmp_path,
    }
    try:
        done = run(GPU / "parallel.sh", tmp_path / "phases", "x", "0", "5", **env)
        assert done.returncode == 0, done.stdout + done.stderr
        state = Path(".state").resolve()
        assert (tmp_path / "8").read_text() == f"2, seed=0,max_steps=2 seed=0,{state}/{label}-0-tasks\n"
        assert (tmp_path / "9").read_text() == f"3, seed=5,max_steps=2 seed=5,{state}/{label}-5-tasks\n"
        said = done.stdout.splitlines()
        assert said[0].startswith(f"{label}-0-x: held out 0.000 ") and said[2].startswith(
            f"{label}-5-x against {label}-0-x"
        )
        few = run(GPU / "parallel.sh", tmp_path / "phases", "x", "0", "1", "2", **env)
        assert few.returncode == 1 and "3 seeds: each needs a GPU of its own, and there are 2" in few.stderr
    finally:
        for left in Path("runs").glob(f"{label}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def test_held_out_rewards_of_runs(tmp_path: Path) -> None:
    tasks = [f"sort-{number}" for number in range(9, 13)]
    low = {task: [0.0, 0.0, 1.0, 0.0] for task in tasks}
    high = {task: [1.0, 1.0, 1.0, 0.0 if task == "sort-9" else 1.0] for task in tasks}
    a = write_ledger(tmp_path / "a", {0: low, 20: high})
    b = write_ledger(tmp_path / "b", {0: low})
    said = lines([a, b])
    assert re.fullmatch(
        r"a: held out 0\.250 \[0\.\d+, 0\.\d+\] at step 0 -> 0\.938 \[0\.\d+, [01]\.\d+\] at step 20, "
        r"difference \+0\.688 \[\+0\.\d+, \+0\.\d+\] over 4 tasks",
        said[0],
    )
    assert said[1].startswith("b: held out 0.250 [") and said[1].endswith("] at step 0")
    assert said[2].startswith("b against a: difference -0.688 [-0.")


def test_bfloat16_of_a_model_is_the_nearest(tmp_path: Path) -> None:
    assert bfloat16(np.array([1.0, 1.00390625, 1.01171875, -2.5], np.float32)).tolist() == [
        0x3F80, 0x3F80, 0x3F82, 0xC020,
    ]  # fmt: skip
    source = tmp_path / "a"
    source.mkdir()
    save_file({"w": np.array([[1.0, -2.5]], np.float32)}, source / "model.safetensors")
    (source / "config.json").write_text('{"dtype": "float32", "hidden_size": 4}')
    (source / "tokenizer.json").write_text("{}")
    convert(source, tmp_path / "b")
    data = (tmp_path / "b" / "model.safetensors").read_bytes()
    assert data.endswith(bytes([0x80, 0x3F, 0x20, 0xC0])) and b'"BF16"' in data
    assert json.loads((tmp_path / "b" / "config.json").read_text())["dtype"] == "bfloat16"
    assert (tmp_path / "b" / "tokenizer.json").exists()
    with pytest.raises(SystemExit, match="model in several files"):
        convert(tmp_path, tmp_path / "c")
