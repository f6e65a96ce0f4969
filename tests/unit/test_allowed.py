"""The list of what users allow for a task, and the command that keeps it."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.bundled.hosts.messages import pack_folder, unpack_folder
from harbortrainer.cli.main import main
from harbortrainer.docker.integrity.allowed import ALLOWED_FILE, allow, allowed
from harbortrainer.docker.integrity.asked import Asked
from harbortrainer.docker.integrity.watch import Process
from tests.support.task_folder import write_task


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "tasks" / "a task")


def trial_of(task: Path, causes: list[str], number: int | None = None) -> Path:
    """A trial's folder with what a trial writes there."""
    folder = task.parent.parent / "trial"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"task": {"path": str(task)}}))
    known: dict[str, Any] = {"reward": 1.0, "without": 0.0, "number": number or len(causes), "causes": causes}
    (folder / "causes.json").write_text(json.dumps(known))
    return folder


def test_what_is_allowed_is_kept_beside_the_task_and_listed(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    things = ["/usr/local/bin/greet", "/opt/a b/", "tcp:8080", "process:redis server"]
    assert main(["tasks", "allow", str(task), *things]) == 0
    assert allowed(task) == set(things)
    assert (task.parent / ALLOWED_FILE).read_text().count("\na%20task ") == 4
    capsys.readouterr()
    assert main(["tasks", "allow", str(task)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *(f"allowed: {thing}" for thing in sorted(things)),
        f"a task: 4 allowed, in {task.parent / ALLOWED_FILE}",
    ]


def test_a_thing_is_removed_alone_and_all_together(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_task(task.parent / "other")
    allow(other, ["/x"])
    allow(task, ["/a", "/b", "tcp:1"])
    assert main(["tasks", "allow", str(task), "/a", "--remove"]) == 0
    assert allowed(task) == {"/b", "tcp:1"}
    assert main(["tasks", "allow", str(task), "/a", "--remove"]) == 2
    assert "error: /a: was not allowed;" in capsys.readouterr().err
    assert main(["tasks", "allow", str(task), "--remove"]) == 0
    assert allowed(task) == set() and allowed(other) == {"/x"}
    assert main(["tasks", "allow", str(other), "--remove"]) == 0
    assert not (task.parent / ALLOWED_FILE).exists()


def test_what_is_allowed_is_asked_for(task: Path) -> None:
    allow(task, ["/usr/bin/greet", "/opt/tool/", "tcp:80", "unix:@bus", "process:db"])
    asked = Asked(None, "", "/app", allowed(task))
    paths = ["/usr/bin/greet", "/usr/bin/greet2", "/opt/tool/bin/x", "/opt/tools", "/opt"]
    assert [asked.allows(path) for path in paths] == [True, False, True, False, False]
    processes = [Process("x", (80,)), Process("x", (81,)), Process("db", (5432,)), Process("db"), Process("x")]
    assert [asked.allows_process(process) for process in processes] == [True, False, True, True, False]
    sockets = ("tcp 80", "tcp 81", "unix @bus", "unix /usr/lib/x")
    assert [asked.allows_socket(socket) for socket in sockets] == [True, False, True, False]


@pytest.mark.parametrize("path", ["/a\nb", "/a%20b", "/ä", "/x\udcff", "/#", "/ "])
def test_a_path_may_have_any_characters(task: Path, path: str) -> None:
    allow(task, [path])
    assert allowed(task) == {path}


def test_a_task_that_was_changed_is_allowed_nothing(
    task: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    allow(task, ["/x"])
    with (task.parent / ALLOWED_FILE).open("a") as file:
        file.write("a%20task - /by-hand\n")
    (task / "instruction.md").write_text("Something else.\n")
    with caplog.at_level(logging.WARNING):
        assert [allowed(task), allowed(task)] == [{"/by-hand"}] * 2
    assert caplog.text.count("allowed.txt has lines for an earlier version of it") == 1
    main(["tasks", "allow", str(task)])
    assert "allowed for an earlier version of the task, without effect: /x\n" in capsys.readouterr().out


def test_what_a_trial_depended_on_is_allowed(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    causes = ["/usr/bin/greet", "/logs/verifier/reward.txt", "process server", "unix @a b", "udp 53"]
    trial = trial_of(task, causes, 9)
    assert main(["tasks", "allow", str(task), "tcp:80", f"trial={trial}"]) == 0
    assert allowed(task) == {"/usr/bin/greet", "process:server", "tcp:80", "tcp:53", "unix:@a b"}
    said = capsys.readouterr().out
    assert "/logs/verifier/reward.txt is left out: verification makes it anew" in said
    assert "causes.json names 5 of 9 causes; allow a /FOLDER/ of theirs" in said


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["usr/bin/x"], "usr/bin/x: no absolute path; give /PATH, /FOLDER/ "),
        (["tcp:0"], "tcp:0: no port;"),
        (["tcp:70000"], "tcp:70000: no port;"),
        (["/usr/../bin"], "/usr/../bin: no file or folder below / in its shortest form;"),
        (["/"], "/: no file or folder below /"),
        (["/tests/test.sh"], "/tests/test.sh: verification makes it anew"),
        (["trial=/nowhere"], "trial=/nowhere: no causes.json in it;"),
    ],
)
def test_a_mistake_is_one_line(task: Path, words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "allow", str(task), *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith(f"error: {error}"), said
    assert allowed(task) == set()


def test_a_folder_that_is_no_task_or_another_ones_trial_is_refused(
    task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "allow", str(task.parent), "/x"]) == 2
    assert ": no Harbor task; give its folder" in capsys.readouterr().err
    trial = trial_of(write_task(task.parent / "other"), ["/x"])
    assert main(["tasks", "allow", str(task), f"trial={trial}"]) == 2
    assert "its task is other, not a task;" in capsys.readouterr().err
    (trial / "causes.json").write_text("{")
    assert main(["tasks", "allow", str(task), f"trial={trial}"]) == 2
    assert ": cannot be read (" in capsys.readouterr().err


def test_it_goes_to_other_hosts_with_the_task(task: Path, tmp_path: Path) -> None:
    allow(task, ["/x"])
    unpack_folder(pack_folder(task, ALLOWED_FILE), tmp_path / "host", trusted=True)
    assert allowed(tmp_path / "host" / task.name) == {"/x"}
    (task.parent / ALLOWED_FILE).unlink()
    unpack_folder(pack_folder(task, ALLOWED_FILE), tmp_path / "other", trusted=True)
    assert allowed(tmp_path / "other" / task.name) == set()
