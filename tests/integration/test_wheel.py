"""Who has only the wheel: built from the sdist, installed by the lock, every command run with no checkout near."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, SMALL_SERVER, free_port, succeed

MODEL, TASKS = "models/quickstart", "datasets/quickstart"
CHECKOUT_WORDS = re.compile(r"python -m src|(?<![\w/])(?:scripts|docs)/\w|(?:^|[ /])run\w*\.sh")
SCRIPTS = ("agents", "datasets", "host", "quickstart", "server", "setup")  # commands that are scripts
NOWHERE = "backend=skyrl-tx skyrl_tx_url=http://127.0.0.1:9"
SMALL = (
    "lora_rank=8 batch_size=2 group_size=4 n_parallel_envs=4 max_turns=4 max_tokens=40 context_limit=2048 "
    "learning_rate=3e-3 eval_tasks=create-6 allow_family_overlap=true save_every=1 max_steps=2"
)


class Installed:
    """An environment that holds the locked packages and the wheel, and an empty folder to work in."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel, self.python, self.work = wheel, folder / "env" / "bin" / "python", folder / "work"
        self.share = folder / "env" / "share" / "harbortrainer"
        call = f"cd {ROOT}; source scripts/lib/common.sh; source scripts/lib/python.sh; ensure_uv; "
        install = f"$UV pip install --quiet --no-deps --python {self.python}"
        lines = (
            f"$UV venv --quiet --python {sys.executable} {folder / 'env'}",
            f"{install} --require-hashes -r requirements.lock",
            f"{install} {wheel}",
        )
        succeed("bash", "-c", call + " && ".join(lines))
        self.work.mkdir()
        for name in ("models", "datasets"):
            (self.work / name).symlink_to(self.share / name)

    def run(self, line: str, status: int = 0, /, **environment: str) -> str:
        """The output of a command line as it was printed, stderr included."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SKYRL", "TINKER"))}
        env |= {"PATH": f"{self.python.parent}:{env['PATH']}"} | environment
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.work, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{line}: {done.returncode}\n{done.stdout}"
        assert not CHECKOUT_WORDS.search(done.stdout), f"{line}: names files of a checkout:\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    with tempfile.TemporaryDirectory(prefix="ht-wheel-") as name:  # on a disk: uv links files from its cache
        folder = Path(name)
        build = f"{sys.executable} -m hatchling build"
        succeed("bash", "-c", f"{build} -t sdist -d {folder} && tar -xzf {folder}/*.tar.gz -C {folder}")
        succeed("bash", "-c", f"cd {folder}/harbortrainer-*/ && {build} -t wheel -d {folder}")
        (wheel,) = folder.glob("*.whl")
        yield Installed(folder, wheel)


def in_one_process(installed: Installed, *lines: str) -> str:
    """What the commands say: each in a process of its own would take seconds."""
    program = f"from harbortrainer.cli.main import main\nfor line in {lines}: assert not main(line.split()), line"
    return installed.run(f"python -c {shlex.quote(program)}")


def printed(pattern: str, said: str) -> str:
    """The command of the only message of this form."""
    found = re.findall(pattern, said, re.MULTILINE)
    assert len(found) == 1, said
    return str(found[0])


def test_the_wheel_has_what_commands_need_and_nothing_that_was_made(installed: Installed) -> None:
    names = [name.partition("/share/harbortrainer/")[2] for name in zipfile.ZipFile(installed.wheel).namelist()]
    assert {"run_quickstart.sh", "server/launch.py", f"{MODEL}/model.safetensors", "docs/tasks.md"} <= set(names)
    assert not [name for name in names if ".venv" in name or "__pycache__" in name or name.startswith("tests")]


def test_every_command_says_how_it_is_used(installed: Installed) -> None:
    listed = installed.run("harbortrainer --help").splitlines()
    names = {" ".join(re.findall(r"^harbortrainer ((?:[a-z]+ ){1,2})", line)).strip() for line in listed}
    assert {"train", "tasks check", "quickstart", "server start"} <= names
    scripts = sorted(name for name in names if name.split()[0] in SCRIPTS)
    others = sorted(names.difference(scripts))
    said = in_one_process(installed, *(f"{name} --help" for name in others))
    assert [name for name in others if f"harbortrainer {name} " not in said] == []
    for name in scripts:
        assert len(installed.run(f"harbortrainer {name} --help")) > 50, name


SCRIPTED = {  # scripts, each in a process of its own: status, words
    "server test http://127.0.0.1:9": (1, "start the server: harbortrainer server start MODEL 1"),
    "host start": (1, "error: give --head"),
    "setup --everything": (1, "unknown option '--everything'"),
    "datasets easy here": (0, "here: 144 tasks"),
}
SAID = {
    f"train {NOWHERE} model_name={MODEL} tasks_dir={TASKS}": (2, "start it with harbortrainer server start MODEL TP"),
    f"train {NOWHERE} model_name={MODEL} tasks_dir={TASKS} {SMALL} --dry-run": (0, "trials"),
    f"train backend=skyrl-tx model_name={MODEL} tasks_dir=datasets/terminal-bench-2": (
        2, "fetch it with harbortrainer datasets bench",
    ),
    f"train backend=tinker max_usd=1 model_name={MODEL} tasks_dir={TASKS}": (2, r"\(harbortrainer docs cost\)"),
    "docs costs": (2, "error: costs: one of README, agents, "),
    "server": (2, "error: give a command; one of start, stop, test"),
    f"tasks list {TASKS}": (0, "48 tasks in 12 families"),
}  # fmt: skip


@pytest.mark.parametrize("line", SCRIPTED)
def test_messages_of_scripts_name_commands_of_the_wheel(installed: Installed, line: str) -> None:
    status, words = SCRIPTED[line]
    assert re.search(words, installed.run(f"harbortrainer {line}", status))


def test_messages_name_commands_of_the_wheel(installed: Installed) -> None:
    program = f"from harbortrainer.cli.main import main\nfor line in {[*SAID]}: print('=>', main(line.split()))"
    said = installed.run(f"python -u -c {shlex.quote(program)}", TINKER_API_KEY="tml-none")
    parts = re.split(r"^=> (\d)\n", said, flags=re.MULTILINE)
    assert [int(status) for status in parts[1::2]] == [status for status, _ in SAID.values()], said
    for found, (_, words) in zip(parts[::2], SAID.values(), strict=False):
        assert re.search(words, found), found


def test_a_page_is_that_of_the_repository(installed: Installed) -> None:
    shown = [installed.python, "-m", "harbortrainer.cli.main", "docs", "cost"]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout.startswith("# Cost")


@pytest.mark.nightly
def test_a_run_from_start_to_report_by_printed_commands(
    installed: Installed, docker_ready: str, server_url: str
) -> None:
    backend = f"backend=skyrl-tx skyrl_tx_url={server_url}"
    words = f"{backend} model_name={MODEL} tasks_dir={TASKS} {SMALL}"
    said = installed.run(f"harbortrainer train {words} run_name=first max_trials=9", 75)
    resume = printed(r"(harbortrainer train resume=\S+)", said)
    installed.run(f"{resume} max_trials=0")
    in_one_process(
        installed, "report runs/first", "evaluate show runs/first", "evaluate export runs/first", "replay runs/first",
        f"export checkpoint=runs/first to=adapter {backend}",
        "doctor clean", f"doctor docker tasks_dir={TASKS}",
    )  # fmt: skip
    assert (installed.work / "runs/first/report.html").is_file()
    assert (installed.work / "adapter/adapter_model.safetensors").is_file()


@pytest.mark.nightly
def test_a_server_and_the_demonstration_with_its_continuation(
    installed: Installed, docker_ready: str, server_env: None
) -> None:
    environment = installed.share / "server" / ".venv"
    if not environment.exists():  # two minutes, if it were made anew
        environment.symlink_to((ROOT / "server" / ".venv").resolve())
    port = str(free_port())
    cache = {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".state" / "jax-cache"), "SKYRL_TX_PORT": port}
    said = installed.run(f"harbortrainer server start --background {MODEL}", **cache, **SMALL_SERVER)
    assert len(re.findall("^ok ", installed.run(f"harbortrainer server test http://127.0.0.1:{port}"), re.M)) == 8
    assert "stopped the server" in installed.run(printed(r"stop it with (harbortrainer server stop \d+)", said))
    short = "max_steps=2 batch_size=2 group_size=4 eval_tasks=create-6 eval_every=0"
    said = installed.run(f"harbortrainer quickstart {short} max_trials=9", 75, **cache)
    again = printed(r"(harbortrainer quickstart resume=)RUN_DIR$", said)
    folder = printed(r"run directory (\S+)$", said)
    assert folder.startswith(str(installed.work / "runs"))
    said = installed.run(f"{again}{shlex.quote(folder)} max_trials=0", **cache)
    assert "stopped the server" in said and (Path(folder) / "report.html").is_file()
