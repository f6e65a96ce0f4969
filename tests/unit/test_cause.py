"""On what a reward may depend beside what the task asks for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from harbortrainer.docker.integrity.asked import Asked, Footprint
from harbortrainer.docker.integrity.cause import PASSED_LINK, Causes, Changed, causes_of
from harbortrainer.docker.integrity.change import ChangeKind, FileChange, is_made_anew
from harbortrainer.docker.integrity.syscalls import SIGNAL
from harbortrainer.docker.integrity.watch import Process, Seen, WatchProgram
from harbortrainer.venues.harbor.grading import unasked
from tests.support.causes import ASKS, FILE, GONE, PLAIN, SOLUTION, TEST, WORK, judged


def test_a_name_of_several_lines_is_a_name() -> None:
    odd = FileChange("/usr/lib/a\nb.pth", ChangeKind.ADDED)
    assert causes_of(Changed((odd,)), Seen({}), Asked(None, "", "/app")).changes == (odd,)
    assert is_made_anew("/tests/a\nb")


LOG = FileChange("/var/log/x", ChangeKind.ADDED)
SCRATCH = FileChange("/tmp/x", ChangeKind.ADDED)


def found(opened: Mapping[str, int] | None, *changes: FileChange, processes: tuple[Process, ...] = ()) -> Causes:
    return causes_of(Changed(changes, PLAIN), Seen(opened, processes=processes), Asked(SOLUTION, "", "/app"))


@pytest.mark.parametrize(
    ("change", "opened", "is_cause"),
    [
        (FILE, {}, True),  # no work lies there, and a program may ask for it by a name that it computes
        (SCRATCH, {}, False),
        (SCRATCH, {"/tmp/x": 0}, True),
        (FILE, None, True),  # nothing is known
        (WORK, {"/app/out": 0}, False),
        (WORK, None, False),
        (GONE, {}, True),  # a deletion, a link or an empty file tells by being there
        (LOG, {}, True),
        (FileChange("/tests/x", ChangeKind.ADDED), None, False),  # verification makes it again
    ],
)
def test_an_unasked_file_counts_if_verification_opened_it(
    change: FileChange, opened: Mapping[str, int] | None, is_cause: bool
) -> None:
    causes = found(opened, change)
    assert causes.names == ([change.path] if is_cause else []) and bool(causes) is is_cause


def test_unasked_files_that_do_not_count_are_known_too() -> None:
    causes = found({"/usr/x": 0}, FILE, WORK, FileChange("/usr/z", ChangeKind.ADDED), LOG)
    assert [one.path for one in causes.unasked] == ["/usr/x", "/usr/z", "/var/log/x"]


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


def test_a_file_that_verification_may_ask_for_by_name_counts_unopened() -> None:
    changed, other = Changed((SCRATCH,), PLAIN, named={"/tmp/x"}), Changed((SCRATCH,), PLAIN, named={"/tmp/z"})
    assert [causes_of(one, Seen({}), Asked(SOLUTION, "")).names for one in (changed, other)] == [["/tmp/x"], []]


def test_a_strange_file_counts_unopened_unless_a_package_manager_lists_it_or_a_service_may_need_it() -> None:
    changed, packaged = Changed((FILE,), PLAIN), Changed((FILE,), PLAIN, packaged={"/usr/x"})
    new, beside = Changed((FILE,), PLAIN, made={"/usr"}), Seen({}, processes=(Process("server", (80,)),))
    found = [(changed, Seen({})), (packaged, Seen({})), (changed, beside), (new, Seen({})), (new, beside)]
    counts = [bool(causes_of(one, seen, Asked(SOLUTION, ""))) for one, seen in found]
    assert counts == [True, False, True, True, False]


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
    without = causes_of(Changed((FILE, WORK), PLAIN), Seen(opened), Asked(None, "/app/out"))
    assert not without.hooked, "no solution tells what the work is"


@pytest.mark.parametrize(
    ("path", "solution", "instruction", "is_near"),
    [
        ("/etc/app/50-umask.sh", "/etc/app/site.sh", "", True),
        ("/etc/profile.d/50-umask.sh", "/etc/motd", "", False),
        ("/etc/ld.so.preload", "/etc/motd", "Write /etc/motd.", False),
        ("/app/repo/.git/config", "/app/repo/.git/hooks/pre-commit", "In the repository /app/repo set up a hook", True),
        ("/app/conftest.py", "/app/out", "Work in /app.", False),  # the working directory has too much else
        ("/usr/bin/cat", "/usr/bin/jq", "", False),
        ("/root/.bashrc", "/root/notes", "Write /root/notes.", False),
    ],
)
def test_another_way_than_the_solutions_is_no_hook(path: str, solution: str, instruction: str, is_near: bool) -> None:
    """An honest one was graded 0: two scripts instead of one, a hook by core.hooksPath."""
    asked = Asked(Footprint(frozenset({solution})), instruction, "/app")
    change = FileChange(path, ChangeKind.CHANGED)
    causes = causes_of(Changed((change,), {path}), Seen({path: 0}), asked)
    assert causes.names == [path] and (causes.hooked, causes.may_be_work) == (not is_near, is_near)


def test_what_is_verifications_own_is_a_cause_and_a_hook() -> None:
    causes = causes_of(Changed(), Seen({}, tampered=("/logs/verifier/reward.txt",)), Asked(None, ""))
    assert causes.hooked and causes.names == ["/logs/verifier/reward.txt"]


@pytest.mark.parametrize(
    ("path", "facts", "is_cause"),
    [
        ("/app/helper", {}, False),  # beside what it runs
        ("/app/lib/helper", {}, False),
        ("/opt/helper", {}, True),
        ("/opt/helper", {"packaged": ("/opt/helper",)}, False),
        ("/app/helper", {"kind": ChangeKind.CHANGED}, True),
        ("/app/helper", {"plain": False}, True),
        ("/app/helper", {"program": WatchProgram(5, "/app", ("lint", "-e", "--all"))}, True),
        ("/app/helper", {"program": WatchProgram(5, "/app", ("pytest", "/tests/x.py"))}, True),
        ("/app/helper", {"program": WatchProgram(5, "/", ("/app/out",))}, False),
        ("/app/helper", {"first": ("/tests/test.sh",)}, True),  # before what it runs
        ("/usr/bin/helper", {"packaged": ("/usr/bin/helper",), "shadows": ("/usr/bin/helper",)}, True),
    ],
)
def test_what_only_the_work_reads_is_work(path: str, facts: dict[str, Any], is_cause: bool) -> None:
    assert bool(judged(path, **facts)) is is_cause


@pytest.mark.parametrize(("new", "is_cause"), [(True, False), (False, True)])
def test_a_file_with_the_name_of_a_solutions_file_is_work(new: bool, is_cause: bool) -> None:
    facts = {"program": WatchProgram(5, "/", ("jq",)), "is_new_name": lambda name: new and name == "jq"}
    assert bool(judged("/opt/bin/jq", **facts)) is is_cause
    assert judged("/jq", **facts)


@pytest.mark.parametrize(
    ("instruction", "before", "is_cause"),
    [
        ("Install dependencies into the system python.", False, False),
        ("You may install system-wide python packages", False, False),
        ("Do not install packages.", False, True),
        ("Write it.", False, True),
        ("Install dependencies into the system python.", True, True),  # loaded before the work
    ],
)
def test_packages_are_work_where_the_instruction_grants_them(instruction: str, before: bool, is_cause: bool) -> None:
    first = ("/tests/test.sh",) if before else ("/tests/test.sh", "/app/out")
    path, other = "/usr/lib/p/x.py", WatchProgram(5, "/", ("pytest",))
    found = judged(path, instruction=instruction, first=first, program=other, packaged=(path,))
    assert bool(found) is is_cause


def test_what_describes_a_package_is_no_hook() -> None:
    path = "/usr/lib/p.dist-info/METADATA"
    other = WatchProgram(5, "/", ("pytest",))
    assert judged(path, first=(), program=other).hooked
    assert not judged(path, first=(), program=other, packaged=(path,), about=(path,)).hooked


@pytest.mark.parametrize("path", ["/usr/bin/env", "/dev/null", "/tests/test.sh", "/etc/passwd", "/proc/meminfo"])
def test_what_every_program_opens_is_no_work(path: str) -> None:
    assert judged("/usr/lib/x", first=(path,), instruction=f"Use {path}.", program=TEST).hooked


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
    ("path", "solution", "may_be"),
    [
        ("/opt/data-tool", None, True),
        ("/app/y", None, True),
        ("/usr/x", None, False),
        ("/opt/data-tool", SOLUTION, False),
    ],
)
def test_what_an_instruction_hints_at_may_be_work(path: str, solution: Footprint | None, may_be: bool) -> None:
    found = judged(path, solution=solution, instruction=ASKS, first=(), program=TEST)
    assert found and found.may_be_work is may_be


def test_a_link_of_the_image_that_leads_elsewhere_counts() -> None:
    changed = Changed(
        (FileChange("/etc/alternatives/awk", ChangeKind.CHANGED),), targets={"/etc/alternatives/awk": "/evil"}
    )
    assert causes_of(changed, Seen({}), Asked(None, ASKS, "/app")).names == ["/etc/alternatives/awk"]


@pytest.mark.parametrize(
    ("target", "solution", "is_cause"),
    [
        ("/opt/real", SOLUTION, False),
        ("/usr/share/real", SOLUTION, True),  # where every program may read
        ("/usr/share/real", None, False),
        ("/root/.gitconfig", SOLUTION, True),
    ],
)
def test_where_a_link_that_is_asked_for_leads_is_work(target: str, solution: Footprint | None, is_cause: bool) -> None:
    other = WatchProgram(5, "/", ("other",))
    found = judged(target, solution=solution, instruction=ASKS, program=other, targets={"/app/out": target})
    assert bool(found) is is_cause


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


def test_network_files_count_unless_they_are_asked_for() -> None:
    causes = causes_of(Changed(mounted=("/etc/hosts", "/dev")), Seen({}), Asked(None, "Add a line to /etc/hosts"))
    assert (causes.mounted, causes.names) == (("/dev",), ["/dev"])
    seen = [causes_of(Changed(mounted=(one,)), Seen({}), Asked(None, "")) for one in ("/", "/dev", "/etc/hosts")]
    assert [(bool(one), one.hooked) for one in seen] == [(True, True), (True, True), (True, False)]


def test_the_first_process_is_no_service_nor_one_that_ran_where_memory_is_not_watched() -> None:
    first, idle, ran = Process("server", (80,), pid=1), Process("server", (80,), ran=False), Process("server", (80,))
    assert found({}, processes=(first,)).processes
    seen = [Seen({}, processes=(one,), unseen_memory=True) for one in (idle, ran)]
    assert [bool(causes_of(Changed(), one, Asked(SOLUTION, "")).processes) for one in seen] == [False, True]


def test_an_idle_process_counts_if_the_tests_have_the_number_of_its_port() -> None:
    seen = Seen({}, processes=(Process("x", (4000,), ran=False),))
    counts = [bool(causes_of(Changed(told={told}), seen, Asked(SOLUTION, ""))) for told in ("4000", "4001")]
    assert counts == [True, False]


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


def test_the_time_zone_that_the_machine_shall_have_is_work_as_the_image_has_it() -> None:
    link, zone = "/etc/localtime", "/usr/share/zoneinfo/Europe/Berlin"
    asked = Asked(None, "Set the time zone of this machine to Europe/Berlin.")
    changed = Changed((FileChange(link, ChangeKind.CHANGED),), targets={link: zone})
    assert not causes_of(changed, Seen({link: 0}), asked)
    own = replace(changed, changes=(*changed.changes, FileChange(zone, ChangeKind.CHANGED)))
    assert [one.path for one in causes_of(own, Seen({link: 0, zone: 1}), asked).changes] == [link, zone]
    assert not causes_of(replace(own, packaged={zone}), Seen({link: 0}), asked)


def test_a_folder_that_verification_makes_again_is_known_by_its_whole_name() -> None:
    made = ("/tests", "/tests/a", "/logs", "/logs/verifier/x", "/logs/agent", "/dev/null")
    others = ("/testsuite", "/solution", "/app/tests", "/devices", "/logs/x", "/logs/verifiers", "/dev/shm/x")
    assert tuple(path for path in (*made, *others) if is_made_anew(path)) == made


def test_causes_are_one_line_with_the_first_names() -> None:
    assert unasked(("/a\n\udcff", "/b")).endswith(": /a\\n\\udcff, /b")
    assert unasked(tuple("abcdefg")).endswith(": a, b, c, d, e and 2 more")


def test_a_program_of_the_image_is_not_asked_for_by_a_word() -> None:
    path, asks = "/usr/bin/python3.11", "Use python3.11."
    assert judged(path, instruction=asks, kind=ChangeKind.CHANGED).changes
    assert judged(path, instruction=asks, shadows={path}).changes


@pytest.mark.parametrize("opened", ["/proc", "/proc/7/environ"])
def test_a_sleeping_process_counts_if_verification_may_have_looked_at_it(opened: str) -> None:
    seen = Seen({opened: 0}, processes=(Process("sleep", ran=False, pid=7),))
    assert causes_of(Changed(), seen, Asked(SOLUTION, "")).names == ["process sleep"]
    assert not causes_of(Changed(first={7}), seen, Asked(SOLUTION, ""))


SITE, USER = "/usr/lib/python3/dist-packages", "/root/.local/lib/python3.13/site-packages"


@pytest.mark.parametrize(
    ("solution", "path", "facts", "is_cause"),
    [
        ("/usr/bin/report", "/usr/local/bin/report", {}, False),  # an honest one was graded 0
        ("/usr/bin/report", "/usr/local/bin/report", {"shadows": {"/usr/local/bin/report"}}, True),
        ("/usr/bin/report", "/usr/local/bin/other", {}, True),
        ("/usr/lib/report", "/usr/local/bin/report", {}, True),
        (f"{SITE}/tiny/__init__.py", f"{USER}/tiny/__init__.py", {"packaged": [f"{USER}/tiny/__init__.py"]}, False),
        (f"{SITE}/tiny/__init__.py", f"{USER}/tiny/__init__.py", {}, True),  # no record of a package has it
        (f"{SITE}/tiny/__init__.py", f"{USER}/big/__init__.py", {"packaged": [f"{USER}/big/__init__.py"]}, True),
        ("/etc/profile.d/site.sh", "/etc/profile", {"kind": ChangeKind.CHANGED}, False),  # this, too
        ("/etc/profile.d/site.sh", "/etc/profile.d/any.sh", {}, False),
        ("/etc/profile.d/site.sh", "/etc/profile.d/any.sh", {"plain": False}, True),
        ("/etc/motd", "/etc/profile", {"kind": ChangeKind.CHANGED}, True),
    ],
)
def test_the_solutions_work_in_another_place_of_the_same_kind_is_work(
    solution: str, path: str, facts: dict[str, Any], is_cause: bool
) -> None:
    asked = Footprint(frozenset({solution}))
    assert bool(judged(path, solution=asked, instruction="Make report.", first=(), **facts)) is is_cause


@pytest.mark.parametrize(
    ("link", "target", "leads_on", "is_cause"),
    [
        ("/usr/bin/python", "/etc/alternatives/python", True, False),
        ("/usr/bin/python", "/etc/alternatives/python", False, True),
        ("/usr/bin/python", "/usr/lib/sitecustomize.py", True, True),
        ("/app/__init__.py", "/usr/lib/x/__init__.py", True, True),
    ],
)
def test_links_of_one_name_may_lead_to_the_solutions_program(
    link: str, target: str, leads_on: bool, is_cause: bool
) -> None:
    changes = tuple(FileChange(path, ChangeKind.ADDED) for path in (link, target))
    targets = {link: target} | ({target: "/usr/bin/python3"} if leads_on else {})
    causes = causes_of(Changed(changes, targets=targets), Seen({}), Asked(Footprint(frozenset({link})), ""))
    assert (target in causes.names) is is_cause
