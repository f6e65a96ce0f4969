"""On which processes, and what they hold or did, a reward may depend."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from harbortrainer.docker.integrity.asked import Asked, Footprint
from harbortrainer.docker.integrity.cause import PASSED_LINK, Changed, causes_of
from harbortrainer.docker.integrity.change import ChangeKind, FileChange
from harbortrainer.docker.integrity.syscalls import SIGNAL
from harbortrainer.docker.integrity.watch import Process, Seen
from tests.support.causes import ASKS, LOG, SOLUTION, WORK, found


@pytest.mark.parametrize(
    ("process", "names"),
    [
        (Process("server", (80,)), []),
        (Process("server", (81,)), ["process server"]),
        (Process("server", (80, 81)), []),
        (Process("server", (80, 8181)), ["process server"]),  # verification may compute it
        (Process("redis"), []),
        (Process("loop"), ["process loop"]),
        (Process("loop", ran=False), []),
        (Process("loop", ran=False, holds=True), ["process loop"]),
        (Process("redis", ran=False, holds=True), []),
    ],
)
def test_an_unasked_process_that_ran_counts(process: Process, names: list[str]) -> None:
    assert found({}, processes=(process, process)).names == names


@pytest.mark.parametrize(
    ("socket", "counts"),
    [
        ("tcp 80", False),  # the solution's
        ("tcp 81", True),
        ("tcp 40000", False),  # nobody else knows its number
        ("tcp 40001", True),  # tests know it
        ("unix @x-77", False),  # the solution's, of another process
        ("unix @y", True),
        ("unix /app/out", False),  # the solution's path
        ("unix /run/x", True),
        ("unix (ended)", True),
    ],
)
def test_a_socket_of_an_asked_service_counts_if_the_task_does_not_ask_for_it(socket: str, counts: bool) -> None:
    asked = Asked(replace(SOLUTION, sockets=frozenset({"@x-#"})), "")
    causes = causes_of(Changed(told={"40001"}), Seen({}, sockets=(socket,)), asked)
    assert causes.names == ([socket] if counts else []) and bool(causes) is counts and not causes.hooked


def test_another_port_of_a_service_counts_if_verification_has_its_number() -> None:
    seen = Seen({}, processes=(Process("server", (80, 81)),))
    asked = Asked(SOLUTION, "", "/app")
    assert [bool(causes_of(Changed(told={told}), seen, asked)) for told in ("81", "82")] == [True, False]


def test_a_service_with_an_unasked_abstract_socket_is_none_that_the_task_asks_for() -> None:
    process = Process("server", (80,), sockets=("@judge", "/run/server.sock"))
    assert found({}, processes=(process,)).names == ["process server"]
    assert Asked(replace(SOLUTION, sockets=frozenset({"@judge"})), "").allows_process(process)
    assert Asked(None, "Keep it running on port 80.").allows_process(process)


def test_what_a_service_deletes_beside_its_work_counts_only_elsewhere() -> None:
    gone = [FileChange(f"{folder}/old", ChangeKind.REMOVED) for folder in ("/app", "/opt")]
    decoy = FileChange("/opt/decoy", ChangeKind.ADDED)
    changed = Changed((WORK, decoy, *gone), ("/app/out", "/opt/decoy"), late={one.path for one in gone})
    assert [one.path for one in causes_of(changed, Seen({}), Asked(SOLUTION, "")).late] == ["/opt/old"]


def test_a_service_that_did_more_than_could_be_seen_counts() -> None:
    server, resting = Process("server", (80,)), Process("redis", ran=False)
    assert causes_of(
        Changed(), Seen({}, processes=(server, resting), unseen_memory=True), Asked(SOLUTION, "")
    ).names == ["process server"]


def test_an_empty_log_of_an_asked_service_is_no_cause() -> None:
    asked, other = Process("server", (80,), writes=(LOG.path,)), Process("loop", ran=False, writes=(LOG.path,))
    assert not found({}, LOG, processes=(asked,))
    assert found({}, LOG, processes=(other,)).names == found({LOG.path: 0}, LOG, processes=(asked,)).names == [LOG.path]


def test_what_is_verifications_own_is_a_cause_and_a_hook() -> None:
    causes = causes_of(Changed(), Seen({}, tampered=("/logs/verifier/reward.txt",)), Asked(None, ""))
    assert causes.hooked and causes.names == ["/logs/verifier/reward.txt"]


@pytest.mark.parametrize(
    ("instruction", "is_cause"), [("Serve it.", True), ("The supervisor kills what hangs.", False), ("Skill it.", True)]
)
def test_a_signal_to_verification_is_a_cause_unless_the_task_is_about_such(instruction: str, is_cause: bool) -> None:
    causes = causes_of(Changed(), Seen({}, tampered=("signal",)), Asked(Footprint(), instruction, "/app"))
    assert (bool(causes), causes.hooked) == (is_cause, is_cause)


@pytest.mark.parametrize(
    ("path", "opened", "is_cause"),
    [("/opt/x", False, True), ("/app/x", False, False), ("/srv/data/x", False, False), ("/srv/data/x", True, True)],
)
def test_what_a_service_deletes_in_folders_that_its_task_names_is_its_work(
    path: str, opened: bool, is_cause: bool
) -> None:
    changed = Changed((FileChange(path, ChangeKind.REMOVED),), late={path})
    causes = causes_of(changed, Seen({path: 0} if opened else {}), Asked(Footprint(), ASKS, "/app"))
    assert bool(causes) is bool(causes.late) is is_cause


@pytest.mark.parametrize(
    ("footprint", "instruction", "hooked"),
    [
        (Footprint(), "", True),
        (Footprint(ports=frozenset({80})), "", False),
        (Footprint(), "Keep it running.", False),
        (None, "", False),
    ],
)
def test_a_process_that_nothing_asks_for_is_a_hook_where_a_solution_leaves_none(
    footprint: Footprint | None, instruction: str, hooked: bool
) -> None:
    causes = causes_of(Changed(), Seen({}, processes=(Process("loop"),)), Asked(footprint, instruction))
    assert causes and causes.hooked is hooked


def test_the_first_process_is_no_service_nor_one_that_ran_where_memory_is_not_watched() -> None:
    first, ran = Process("server", (80,), pid=1), Process("server", (80,))
    idle = replace(ran, ran=False, holds=True)
    assert found({}, processes=(first,)).processes
    seen = [Seen({}, processes=(one,), unseen_memory=True) for one in (idle, ran)]
    assert [bool(causes_of(Changed(), one, Asked(SOLUTION, "")).processes) for one in seen] == [False, True]


def test_an_idle_process_counts_if_the_tests_have_the_number_of_its_port() -> None:
    seen = Seen({}, processes=(Process("x", (4000,), ran=False),))
    counts = [bool(causes_of(Changed(told={told}), seen, Asked(SOLUTION, ""))) for told in ("4000", "4001")]
    assert counts == [True, False]


@pytest.mark.parametrize(
    ("opened", "counts"),
    [({}, False), ({"/proc": 0}, True), ({"/proc/7/stat": 0}, True), ({"/proc/8/stat": 0}, False), (None, True)],
)
def test_a_process_that_sleeps_counts_if_verification_looked_at_it(
    opened: Mapping[str, int] | None, counts: bool
) -> None:
    assert bool(found(opened, processes=(Process("loop", ran=False, pid=7),))) is counts


def test_a_port_of_the_instruction_is_asked_for_though_tests_have_its_number() -> None:
    seen = Seen({}, sockets=("tcp 81",))
    assert not causes_of(Changed(told={"81"}), seen, Asked(None, "Serve it on port 81."))


def test_a_socket_of_the_solution_is_its_own_though_tests_have_its_name() -> None:
    asked = Asked(replace(SOLUTION, sockets=frozenset({"@judge"})), "")
    seen = Seen({}, processes=(Process("server", (80,), sockets=("@judge",)),))
    assert not causes_of(Changed(told={"judge"}), seen, asked)


def test_a_link_of_a_moment_counts_whatever_the_task_asks_for() -> None:
    assert causes_of(Changed(), Seen({}, sockets=(PASSED_LINK,)), Asked(SOLUTION, "")).names == [PASSED_LINK]


def test_where_processes_are_to_be_ended_a_signal_is_none_of_what_touched_verification() -> None:
    seen = Seen({}, tampered=(SIGNAL, "/tests/x"))
    found = [causes_of(Changed(), seen, Asked(None, text)) for text in ("Kill the process.", "Do it.")]
    assert [one.tampered for one in found] == [("/tests/x",), (SIGNAL, "/tests/x")]


@pytest.mark.parametrize("opened", ["/proc", "/proc/7/environ"])
def test_a_sleeping_process_counts_if_verification_may_have_looked_at_it(opened: str) -> None:
    seen = Seen({opened: 0}, processes=(Process("sleep", ran=False, pid=7),))
    assert causes_of(Changed(), seen, Asked(SOLUTION, "")).names == ["process sleep"]
    assert not causes_of(Changed(first={7}), seen, Asked(SOLUTION, ""))
