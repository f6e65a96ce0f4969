"""What a task asks for, on what else a reward may depend, and what the watcher tells."""

import json
from collections.abc import Mapping

import pytest

from harbortrainer.docker.cause import Asked, Causes, Footprint, causes_of, is_made_anew
from harbortrainer.docker.layer import Change, Kind
from harbortrainer.docker.watch import Process, Seen, _parsed
from harbortrainer.rollout.grading import unasked

BLOB, OTHER = "ab/" + "0123456789" * 3, "cd/" + "f" * 38
SOLUTION = Footprint(
    paths=frozenset({"/usr/bin/jq", "/app/out", f"/app/.git/objects/{BLOB}", f"/cache/{'a' * 64}"}),
    made=frozenset({"/opt/tool"}),
    ports=frozenset({80}),
    processes=frozenset({"redis"}),
)
INSTRUCTION = "Fix `/etc/app.conf` and write /srv/motd, answer.txt and Makefile; serve http://localhost:8080/x."


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/usr/bin/jq", True),  # the solution's
        ("/usr/bin/jq2", False),
        ("/opt/tool/bin/x", True),  # in a folder that the solution made
        ("/opt/toolbox", False),
        ("/app/out/other", False),  # the solution changed the folder alone
        ("/etc/app.conf", True),  # the instruction's path
        ("/srv/motd", True),
        ("/etc/motd", False),  # a name without a dot, elsewhere
        ("/etc/app.conf.d", False),
        ("/root/answer.txt", True),  # a name with a dot, anywhere
        ("/app/sub/Makefile", True),  # any word, in the working directory
        ("/usr/Makefile", False),
        ("/application/Makefile", False),
        (f"/app/.git/objects/{OTHER}", True),  # named by another content
        (f"/usr/.git/objects/{OTHER}", False),
        ("/app/.git/objects/cd/short", False),
        (f"/cache/{'b' * 64}", True),
    ],
)
def test_what_the_solution_changes_or_the_instruction_names_is_asked_for(path: str, allowed: bool) -> None:
    assert Asked(SOLUTION, INSTRUCTION, "/app").allows(path) is allowed


@pytest.mark.parametrize("work", ["", "/"])
def test_the_root_is_no_working_directory(work: str) -> None:
    asked = Asked(None, INSTRUCTION, work)
    assert not asked.has_solution and asked.allows("/x/answer.txt") and not asked.allows("/x/Makefile")


@pytest.mark.parametrize(
    ("name", "ports", "allowed"),
    [
        ("any", (80,), True),  # the solution's port
        ("any", (80, 8080), True),  # the instruction's
        ("redis", (81,), False),
        ("any", (80, 81), False),
        ("redis", (), True),
        ("any", (), False),
    ],
)
def test_a_service_is_asked_for_by_its_ports_and_another_process_by_its_name(
    name: str, ports: tuple[int, ...], allowed: bool
) -> None:
    assert Asked(SOLUTION, INSTRUCTION).allows_process(Process(name, ports)) is allowed


def test_a_version_or_an_address_is_no_port() -> None:
    asked = Asked(None, "Python 3.12 at 127.0.0.1:5000, x99 or 77y; port 6000.")
    ports = (12, 27, 77, 99, 127, 5000, 6000)
    assert [port for port in ports if asked.allows_process(Process("x", (port,)))] == [5000, 6000]


FILE, WORK, GONE = Change("/usr/x", Kind.ADDED), Change("/app/out", Kind.ADDED), Change("/usr/y", Kind.REMOVED)
LOG = Change("/var/log/x", Kind.ADDED)
PLAIN = ("/usr/x", "/app/out")


def found(opened: Mapping[str, int] | None, *changes: Change, processes: tuple[Process, ...] = ()) -> Causes:
    return causes_of(changes, PLAIN, (), Seen(opened, processes=processes), Asked(SOLUTION, "", "/app"))


@pytest.mark.parametrize(
    ("change", "opened", "is_cause"),
    [
        (FILE, {}, False),
        (FILE, {"/usr/x": 0}, True),
        (FILE, None, True),  # nothing is known
        (WORK, {"/app/out": 0}, False),
        (WORK, None, False),
        (GONE, {}, True),  # a deletion, a link or an empty file tells by being there
        (LOG, {}, True),
        (Change("/tests/x", Kind.ADDED), None, False),  # verification makes it again
    ],
)
def test_an_unasked_file_counts_if_verification_opened_it(
    change: Change, opened: Mapping[str, int] | None, is_cause: bool
) -> None:
    causes = found(opened, change)
    assert causes.names == ([change.path] if is_cause else []) and bool(causes) is is_cause


def test_unasked_files_that_do_not_count_are_known_too() -> None:
    causes = found({"/usr/x": 0}, FILE, WORK, Change("/usr/z", Kind.ADDED), LOG)
    assert [one.path for one in causes.unasked] == ["/usr/x", "/usr/z", "/var/log/x"]


@pytest.mark.parametrize(
    ("process", "names"),
    [
        (Process("server", (80,)), []),
        (Process("server", (81,)), ["process server"]),
        (Process("redis"), []),
        (Process("loop"), ["process loop"]),
        (Process("loop", ran=False), []),
    ],
)
def test_an_unasked_process_that_ran_counts(process: Process, names: list[str]) -> None:
    assert found({}, processes=(process, process)).names == names


def test_an_empty_log_of_an_asked_service_is_no_cause() -> None:
    asked, other = Process("server", (80,), writes=(LOG.path,)), Process("loop", ran=False, writes=(LOG.path,))
    assert not found({}, LOG, processes=(asked,))
    assert found({}, LOG, processes=(other,)).names == found({LOG.path: 0}, LOG, processes=(asked,)).names == [LOG.path]


@pytest.mark.parametrize(
    ("opened", "hooked"),
    [
        ({"/usr/x": 0, "/app/out": 1}, True),
        ({"/app/out": 0, "/usr/x": 1}, False),
        ({"/usr/x": 0}, True),  # the work was not opened at all
        ({"/app/out": 0}, False),
        (None, False),  # no order is known
    ],
)
def test_what_verification_meets_before_the_work_is_a_hook(opened: Mapping[str, int] | None, hooked: bool) -> None:
    assert found(opened, FILE, WORK).hooked is hooked
    without = causes_of([FILE, WORK], PLAIN, (), Seen(opened), Asked(None, "/app/out"))
    assert not without.hooked, "no solution tells what the work is"


def test_what_is_verifications_own_is_a_cause_and_a_hook() -> None:
    causes = causes_of([], (), (), Seen({}, tampered=("/logs/verifier/reward.txt",)), Asked(None, ""))
    assert causes.hooked and causes.names == ["/logs/verifier/reward.txt"]


def test_network_files_count_unless_they_are_asked_for() -> None:
    causes = causes_of([], (), ("/etc/hosts", "/dev"), Seen({}), Asked(None, "Add a line to /etc/hosts"))
    assert (causes.mounted, causes.names) == (("/dev",), ["/dev"])


def test_a_folder_that_verification_makes_again_is_known_by_its_whole_name() -> None:
    paths = ("/tests", "/tests/a", "/logs/x", "/solution", "/testsuite", "/app/tests", "/devices")
    assert [path for path in paths if is_made_anew(path)] == ["/tests", "/tests/a", "/logs/x", "/solution"]


def test_causes_are_one_line_with_the_first_names() -> None:
    assert unasked(("/a\n\udcff", "/b")).endswith(": /a\\n\\udcff, /b")
    assert unasked(tuple("abcdefg")).endswith(": a, b, c, d, e and 2 more")


TOLD = {
    "opened": {"/a": 0}, "written": ["/b"], "tampered": ["/tests/x"], "overflow": False,
    "processes": [{"name": "p", "ports": [80], "ran": False, "writes": ["/c"]}],
}  # fmt: skip


@pytest.mark.parametrize(("overflow", "opened"), [(False, {"/a": 0}), (True, None)])
def test_what_the_watcher_saw_is_read(overflow: bool, opened: Mapping[str, int] | None) -> None:
    told = json.dumps(TOLD | {"overflow": overflow}).encode()
    assert _parsed(told) == Seen(opened, frozenset({"/b"}), ("/tests/x",), (Process("p", (80,), False, ("/c",)),))


@pytest.mark.parametrize("text", [b"", b"{", b"\xff"])
def test_a_watcher_that_was_cut_off_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        _parsed(text)
