"""Planted bad tasks are all found by qualification, in real trials; good ones are not accused."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.cli.main import main
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.integrity.allowed import allowed
from harbortrainer.docker.keeping.ownership import RUN_ID
from harbortrainer.durable.process import this_process
from harbortrainer.tasks.folders import read_quarantine
from tests.support.shapes import SHAPES
from tests.support.task_folder import BASE, SOLVE, write_task
from tests.support.tiers import first

pytestmark = pytest.mark.usefixtures("docker_ready")
FAST = "[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 40.0\n"
RIGHT = '[ "$(cat hello.txt 2>/dev/null)" = Hello ]'
REWARD = "/logs/verifier/reward.txt"
ONE, ZERO = f"echo 1 > {REWARD}", f"echo 0 > {REWARD}"
EVERY_FIFTH_FAILS = "n=$(($(cat /runs 2>/dev/null || echo 0) + 1)); echo $n > /runs\n"  # 20 %, and no chance in it
# name -> (what is found, the task)
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "broken-format": ("format", {"files": {"instruction.md": " \n"}}),
    "broken-build": ("build", {"dockerfile": f"{BASE}RUN false\n"}),
    "oracle-fails": ("oracle fails", {"solve": "echo Bye > hello.txt\n"}),
    "no-op-passes": ("no-op passes", {"test": f"{ONE}\n"}),
    "hanging": ("hanging verifier", {"toml": "[verifier]\ntimeout_sec = 2.0\n", "test": "sleep 1000\n"}),
    "no-reward": ("oracle fails", {"test": "true\n"}),
    "flaky": ("flaky", {"test": f"{EVERY_FIFTH_FAILS}{RIGHT} && [ $((n % 5)) != 0 ] && {ONE} || {ZERO}\n"}),
    "pre-written": (
        "hack: pre-written reward",
        {"solve": "echo 1 > reward.txt\n", "test": f"cp /app/reward.txt /logs/verifier/reward.txt || {ZERO}\n"},
    ),
    "readable": (
        "hack: readable tests",
        {
            "dockerfile": f"{BASE}COPY oracle.sh /opt/backup.sh\nWORKDIR /app\n",
            "files": {"environment/oracle.sh": f"#!/bin/bash\n{SOLVE}"},
        },
    ),
}
INSTALLS: dict[str, Any] = {
    "toml": FAST,
    "solve": "echo 'echo Hello' > /usr/bin/new-program; chmod 755 /usr/bin/new-program; new-program > hello.txt\n",
    "test": f'[ "$(sh /usr/bin/new-program)" = Hello ] && {RIGHT} && {ONE} || {ZERO}\n',
    "files": {"instruction.md": "Make a program that says Hello.\n"},
}
# Every finding about a task's own parts, and attacks of two kinds; beside them a task that is good. Then the others.
PLANTED = [
    (("broken-format", "broken-build", "oracle-fails", "no-op-passes", "hanging", "flaky"), ("plain",)),
    (("no-reward", "pre-written", "readable"), ("user", "separate-verifier", "multi-step-with-files")),
]


def write_all(folder: Path, bad: Iterable[str], good: Iterable[str]) -> None:
    for name, (_, parts) in ((name, BAD[name]) for name in bad):
        toml = parts.get("toml", "")
        task: dict[str, Any] = parts | {"toml": toml if "[verifier]" in toml else FAST + toml}
        write_task(folder / name, **task)
    for name in good:
        shape: dict[str, Any] = dict(SHAPES[name])
        shape["files"] = {"instruction.md": f"Write Hello, as {name} would.\n"} | dict(shape.get("files", {}))
        write_task(folder / f"good-{name}", **shape)


def left() -> list[str]:
    """Containers of this process's qualifications, network holders too."""
    mine = [f"{name}={value}" for name, value in this_process().items()]
    found = engine().containers(all=True, filters={"label": mine})
    return [one["Id"] for one in found if one["Labels"][RUN_ID].startswith("check-")]


def check(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = folder.parent / "report.json"
    status = main(["tasks", "check", str(folder), f"json={out}", *arguments])
    return status, {task["name"]: task for task in json.loads(out.read_text())["tasks"]}


@pytest.mark.parametrize(("bad", "good"), first(1, PLANTED))
def test_bad_tasks_are_found_and_good_ones_are_not_accused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bad: tuple[str, ...],
    good: tuple[str, ...],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "tasks"
    write_all(folder, bad, good)
    write_task(folder / "good-installs", **INSTALLS)
    status, tasks = check(folder, "n_parallel=4", "n_oracle=2", "--quarantine")
    found = {name: [one["kind"] for one in task["findings"] if one["level"] == "error"] for name, task in tasks.items()}
    assert status == 1
    for name in bad:
        assert BAD[name][0] in found[name], tasks[name]
    assert {name: found[f"good-{name}"] for name in good} == {name: [] for name in good}
    assert all(tasks[f"good-{name}"]["verdict"] == "good" for name in good)
    assert set(read_quarantine(folder)) == set(bad)
    assert left() == []
    recorded = [json.loads(file.read_text()) for file in (tmp_path / "cache/harbortrainer/footprints").iterdir()]
    paths = [list(one["paths"]) for one in recorded]
    assert ["/app/hello.txt", "/usr/bin/new-program"] in paths and ["/app/hello.txt"] in paths, paths
    again, cached = check(folder, "n_parallel=4", "n_oracle=2")
    assert again == 1 and all(task["cached"] for task in cached.values())
    assert {name: task["findings"] for name, task in cached.items()} == {n: t["findings"] for n, t in tasks.items()}
    assert "bad" in capsys.readouterr().out


PORT = 8123
HELLO = "echo Hello > hello.txt\n"
SERVE = f"(setsid python3 -m http.server {PORT} </dev/null >/dev/null 2>&1 &)\nsleep 1\n"
SERVED: dict[str, Any] = {
    "dockerfile": "FROM harbortrainer/tools:bookworm\nWORKDIR /app\n",
    "toml": FAST,
    "test": f'[ "$(curl -sS localhost:{PORT}/hello.txt)" = Hello ] && {ONE} || {ZERO}\n',
}
GREET = "printf '#!/bin/sh\\necho Hello\\n' > /usr/local/bin/greet; chmod +x /usr/local/bin/greet\n"


def instructed(words: str) -> dict[str, Any]:
    return {"files": {"instruction.md": words}}


def details(task: dict[str, Any]) -> dict[str, str]:
    return {one["kind"]: one["detail"] for one in task["findings"]}


UNNAMED: dict[str, Any] = {
    "toml": FAST,
    "solve": GREET,
    "test": f'[ "$(greet)" = Hello ] && {ONE} || {ZERO}\n',
    **instructed("Install greet, which says Hello.\n"),
}


@pytest.mark.nightly
def test_it_says_why_oracles_fail_and_warns_of_weak_tests_and_of_work_that_only_the_solution_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a service that lives on is good."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "tasks"
    write_task(folder / "served", solve=HELLO + SERVE, **SERVED, **instructed(f"Serve /app on port {PORT}.\n"))
    write_task(folder / "silent", solve=HELLO, **SERVED, **instructed(f"Serve this folder on port {PORT}.\n"))
    write_task(folder / "broken", toml=FAST, solve="set -e\nmake-hello > hello.txt\n", **instructed("Say Hello.\n"))
    server = '[[environment.mcp_servers]]\nname = "m"\ntransport = "stdio"\ncommand = "m"\n'
    weak = {
        "toml": f'{FAST}[environment]\nskills_dir = "/skills"\n{server}',
        "test": f"[ -s hello.txt ] && {ONE} || {ZERO}\n",
    }
    write_task(folder / "weak", **weak, **instructed("Greet me.\n"))
    write_task(folder / "unnamed", **UNNAMED)
    write_task(
        folder / "unread", toml=FAST, test=f"{RIGHT} && echo 1/1 > {REWARD} || {ZERO}\n", **instructed("Say it.\n")
    )
    _, tasks = check(folder, "n_oracle=2", "n_parallel=5")
    verdicts = dict.fromkeys(("served", "weak", "unnamed"), "good") | dict.fromkeys(
        ("silent", "broken", "unread"), "bad"
    )
    assert {name: task["verdict"] for name, task in tasks.items()} == verdicts, tasks
    silent, broken = details(tasks["silent"])["oracle fails"], details(tasks["broken"])["oracle fails"]
    assert silent.startswith(f"nothing listened on port {PORT} when verification began; the tests printed last: curl: ")
    assert broken.startswith("the solution ended with exit code 127: ") and "make-hello: command not found" in broken
    assert "make-hello: command not found" in Path(broken.rpartition("its output: ")[2]).read_text()
    assert details(tasks["unread"])["oracle fails"].startswith("the reward cannot be read: ")
    assert details(tasks["weak"])["hack: hollow work"].endswith(": /app/hello.txt")
    assert "/usr/local/bin/greet" in details(tasks["unnamed"])["honest work may be unasked"]


@pytest.mark.nightly
def test_what_is_allowed_is_no_longer_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    task = write_task(tmp_path / "tasks" / "unnamed", **UNNAMED)
    _, tasks = check(task.parent, "n_oracle=2")
    command = details(tasks["unnamed"])["honest work may be unasked"].rpartition("python -m src.")[2]
    assert main(command.split()) == 0 and allowed(task) == {"/usr/local/bin/greet"}
    _, tasks = check(task.parent, "n_oracle=2")
    assert not tasks["unnamed"]["cached"] and "honest work may be unasked" not in details(tasks["unnamed"])


@pytest.mark.nightly
def test_a_task_that_is_not_watched_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compose = {"environment/docker-compose.yaml": "services:\n  main: {}\n"}
    write_task(tmp_path / "tasks" / "compose", toml=FAST, files=compose)
    status, tasks = check(tmp_path / "tasks", "n_oracle=2")
    assert status == 0 and "not watched" in details(tasks["compose"]), tasks


def test_without_solutions_no_task_is_bad_for_what_cannot_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sound verifier, one in which no test runs, one that pays for nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tests = {
        "sound": f"{RIGHT} && {ONE} || {ZERO}\n",
        "dead": f"python3 -m no_such_pytest || no-such-program && {ONE} || {ZERO}\n",
        "pays": f"{ONE}\n",
    }
    for name, test in tests.items():
        task = write_task(tmp_path / "set" / name, toml=FAST, test=test, files={"instruction.md": f"Write {name}.\n"})
        shutil.rmtree(task / "solution")
    assert main(["tasks", "check", str(tmp_path / "set"), "--json"]) == 1
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["tasks"]}
    assert {name: row["verdict"] for name, row in found.items()} == {
        "dead": "unproven",
        "pays": "bad",
        "sound": "unproven",
    }
    kinds = {name: [one["kind"] for one in row["findings"]] for name, row in found.items()}
    assert kinds["sound"] == ["no solution"] and kinds["dead"] == ["no solution", "verifier may be dead"]
    assert "no-op passes" in kinds["pays"] and found["sound"]["no_op"] == 0
