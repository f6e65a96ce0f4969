"""On what else a reward may depend where no solution tells what the work is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harbortrainer.docker.integrity.asked import Asked, Footprint
from harbortrainer.docker.integrity.cause import Changed, causes_of
from harbortrainer.docker.integrity.change import ChangeKind, FileChange
from harbortrainer.docker.integrity.watch import Process, Seen, WatchProgram
from tests.support.causes import ASKS, PLAIN, SOLUTION, TEST, WORK, judged

READS = dict.fromkeys(("/tests/test.sh", "/app/y.txt"), (9,))


@pytest.mark.parametrize(
    ("path", "facts", "is_cause"),
    [
        ("/srv/data/x", {}, False),  # in a folder that the instruction names
        ("/srv/data/x", {"kind": ChangeKind.CHANGED}, False),
        ("/srv/data/x", {"first": ()}, True),  # before anything that it names
        ("/app/y", {}, False),  # the working directory
        ("/usr/bin/x", {"program": WatchProgram(5, "/", ("x",))}, True),
        ("/opt/x", {}, False),  # read by a program of the work, wherever it is
        ("/opt/x", {"program": WatchProgram(5, "/", ("other",))}, True),
        ("/opt/x", {"program": WatchProgram(99, "/", ("other",))}, False),  # who started it had ended
        ("/root/.cache/x", {}, True),
        (f"/root/.cache/{'b' * 64}", {}, True),  # a verdict may be kept by its content
        ("/root/notes/a.txt", {"first": ()}, False),
        ("/home/a/.ssh", {"plain": False, "kind": ChangeKind.CHANGED}, True),  # opened
    ],
)
def test_where_there_is_no_solution_the_instruction_tells_where_the_work_is(
    path: str, facts: dict[str, Any], is_cause: bool
) -> None:
    assert bool(judged(path, solution=None, instruction=ASKS, **facts)) is is_cause


@pytest.mark.parametrize(
    ("path", "first", "readers", "is_cause"),
    [
        ("/app/y.txt", ["/tests/test.sh"], {"/app/y.txt": (9,)}, False),  # a program that starts no others
        ("/app/y.txt", ["/tests/test.sh"], READS, False),  # the tests' own
        ("/app/y.txt", [], READS, True),  # which was about to load them
        ("/app/y.txt", ["/tests/test.sh"], {"/app/y.txt": (5,)}, True),  # it starts others
        ("/app/y.txt", ["/tests/test.sh"], {"/app/y.txt": (9, 5)}, True),
        ("/app/y.txt", ["/tests/test.sh"], {"/app/y.txt": tuple(range(9, 41))}, True),  # there may be more
        ("/app/y.txt", ["/tests/test.sh"], {}, True),
        ("/app/z.txt", ["/tests/test.sh"], {"/app/z.txt": (9,)}, True),  # not named
        ("/app/Makefile", ["/tests/test.sh"], {"/app/Makefile": (9,)}, False),  # any word, in the working directory
        ("/app/bin/python3", ["/tests/test.sh"], {"/app/bin/python3": (9,)}, True),  # the image has one
        ("/srv/data/Makefile", ["/tests/test.sh"], {"/srv/data/Makefile": (9,)}, True),
        ("/srv/data/y.txt", ["/tests/test.sh"], {"/srv/data/y.txt": (9,)}, False),
        ("/usr/lib/y.txt", ["/tests/test.sh"], {"/usr/lib/y.txt": (9,)}, True),  # elsewhere
    ],
)
def test_a_file_that_the_tests_name_is_work_where_no_solution_tells(
    path: str, first: Sequence[str], readers: Mapping[str, tuple[int, ...]], is_cause: bool
) -> None:
    opened = {one: place for place, one in enumerate(dict.fromkeys((*first, path, "/tests/test.sh", "/app/out")))}
    seen = Seen(opened, readers=readers, programs={9: WatchProgram(5, "/", ("cat",)), 5: TEST})
    changed = Changed(
        (FileChange(path, ChangeKind.ADDED), WORK), {*PLAIN, path}, is_new_name=lambda name: name != "python3"
    )
    asked = Asked(None, ASKS, "/app", tests={"y.txt", "Makefile", "python3"})
    assert causes_of(changed, replace(seen, opened=None, readers={}), asked)
    assert bool(causes_of(changed, seen, asked)) is is_cause
    assert causes_of(changed, seen, Asked(SOLUTION, ASKS, "/app", tests={"y.txt", "Makefile"}))


@pytest.mark.parametrize(
    ("path", "kind", "readers", "is_cause"),
    [
        ("/app/z.txt", ChangeKind.CHANGED, (9,), False),  # an honest "replace foo by bar in all files" was unasked
        ("/srv/data/z.txt", ChangeKind.CHANGED, (9,), False),
        ("/app/z.txt", ChangeKind.ADDED, (9,), True),
        ("/app/z.txt", ChangeKind.CHANGED, (5,), True),  # what starts others may have read its settings
        ("/app/.git/config", ChangeKind.CHANGED, (9,), True),
        ("/srv/other/z.txt", ChangeKind.CHANGED, (9,), True),
    ],
)
def test_a_changed_file_of_the_image_is_work_where_only_tests_and_programs_alone_read_it(
    path: str, kind: ChangeKind, readers: tuple[int, ...], is_cause: bool
) -> None:
    programs = {9: WatchProgram(5, "/", ("grep",)), 5: TEST}
    seen = Seen({"/tests/test.sh": 0, path: 1}, readers={**READS, path: readers}, programs=programs)
    asked = Asked(None, "Replace foo by bar in all files below /app and /srv/data.", "/app")
    changed = Changed((FileChange(path, kind),), {path})
    assert bool(causes_of(changed, seen, asked)) is is_cause
    if kind is ChangeKind.CHANGED and not path.startswith("/srv/other"):
        assert not causes_of(replace(changed, is_same=lambda _: True), seen, asked), "only touched"


@pytest.mark.parametrize(
    ("path", "kind", "same", "is_cause"),
    [
        ("/app/tools/run", ChangeKind.CHANGED, True, False),
        ("/srv/data/key", ChangeKind.CHANGED, True, False),
        ("/app/tools/run", ChangeKind.CHANGED, False, True),  # and another content
        ("/usr/bin/run", ChangeKind.CHANGED, True, True),
        ("/app", ChangeKind.REMOVED, False, False),
        ("/opt/app", ChangeKind.REMOVED, False, True),
    ],
)
def test_rights_alone_and_deletions_are_work_where_no_solution_tells_and_the_work_is(
    path: str, kind: ChangeKind, same: bool, is_cause: bool
) -> None:
    opened = {} if kind is ChangeKind.REMOVED else {path: 0, "/app/out": 1}
    changed = Changed((FileChange(path, kind), WORK), PLAIN, is_same=lambda _: same)
    assert bool(causes_of(changed, Seen(opened), Asked(None, ASKS, "/app"))) is is_cause


def test_accounts_that_the_instruction_names_are_work_where_no_solution_tells() -> None:
    users = FileChange("/etc/passwd", ChangeKind.CHANGED)
    changed = Changed((users,), [users.path], accounts=[users.path])
    kinds = Asked(None, ASKS), Asked(SOLUTION, ASKS)
    assert [bool(causes_of(changed, Seen({users.path: 0}), asked)) for asked in kinds] == [False, True]


@pytest.mark.parametrize(
    ("path", "instruction", "is_cause"),
    [
        ("/opt/cases/five", ASKS, True),
        ("/opt/cases/five", "Remove what is old.", False),
        ("/srv/data/x", ASKS, False),
        ("/tmp/x", ASKS, False),
        ("/var/lib/apt/lists/x", ASKS, False),
        ("/usr/bin/x", "Remove what is old.", True),
    ],
)
def test_deletions_are_work_where_there_is_no_solution_but_an_instruction(
    path: str, instruction: str, is_cause: bool
) -> None:
    gone = Changed((FileChange(path, ChangeKind.REMOVED),))
    assert bool(causes_of(gone, Seen({}), Asked(None, instruction, "/app"))) is is_cause


def test_rights_of_files_that_nobody_opened_are_work_where_there_is_no_solution() -> None:
    rights = [FileChange(path, ChangeKind.CHANGED) for path in ("/etc/ssh/key", "/usr/bin/tool", "/home/a/.ssh/key")]
    causes = causes_of(Changed(tuple(rights)), Seen({}), Asked(None, ASKS, "/app"))
    assert causes.names == ["/usr/bin/tool"]
    assert len(causes_of(Changed(tuple(rights)), Seen({}), Asked(Footprint(), ASKS, "/app")).names) == 3


@pytest.mark.parametrize("change", [(kind, link) for kind in ChangeKind for link in (False, True)])
@pytest.mark.parametrize(
    ("path", "opened", "facts", "is_cause"),
    [
        ("/opt/x/y", ("/opt/z/t", "/app/out"), {}, False),
        ("/opt/x/y", ("/opt/x/t", "/app/out"), {}, True),  # beside what verification loads first
        ("/opt/x/a/y", ("/opt/x/t", "/app/out"), {}, True),
        ("/opt/x", ("/opt/x/t", "/app/out"), {}, True),
        ("/opt/x/y", ("/app/out", "/opt/x/t"), {}, False),  # after the work
        ("/tmp/y", ("/tmp/t", "/app/out"), {}, False),  # a folder of everybody
        ("/opt/x/y", ("/app/out",), {"named": {"/opt/x/y"}}, True),
        ("/opt/x/notes.y", ("/app/out",), {"named": {"/opt/x/notes.y"}}, False),  # the instruction speaks of notes
        ("/opt/x/y", None, {}, True),  # nothing is known
    ],
)
def test_what_has_no_content_counts_where_verification_loads_or_by_its_name(
    change: tuple[ChangeKind, bool], path: str, opened: Sequence[str] | None, facts: dict[str, Any], is_cause: bool
) -> None:
    kind, link = change
    seen = Seen(None if opened is None else {one: place for place, one in enumerate(opened)})
    targets = {path: "/usr/bin/true"} if link and kind is not ChangeKind.REMOVED else {}
    changed = Changed((FileChange(path, kind), WORK), PLAIN, targets=targets, **facts)
    assert bool(causes_of(changed, seen, Asked(None, f"{ASKS} Clean up.", "/app"))) is is_cause


@pytest.mark.parametrize(("kind", "is_cause"), [(ChangeKind.CHANGED, True), (ChangeKind.ADDED, True)])
def test_new_content_with_new_rights_counts_if_others_than_the_work_read_it(kind: ChangeKind, is_cause: bool) -> None:
    facts: dict[str, Any] = {"kind": kind, "plain": False, "solution": None, "instruction": ASKS}
    assert bool(judged("/opt/x/y", program=WatchProgram(5, "/", ("other",)), **facts)) is is_cause
    assert not judged("/opt/x/y", **facts)


@pytest.mark.parametrize(
    ("named", "opened", "is_cause"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_a_new_file_of_a_process_during_verification_counts_by_its_name_or_if_it_is_opened(
    named: bool, opened: bool, is_cause: bool
) -> None:
    path = "/srv/lenient"
    changed = Changed((FileChange(path, ChangeKind.ADDED),), late={path}, named={path} if named else ())
    for solution in (None, Footprint()):
        assert bool(causes_of(changed, Seen({path: 0} if opened else {}), Asked(solution, "", "/app"))) is is_cause


@pytest.mark.parametrize(
    ("name", "instruction", "is_cause"),
    [
        ("judge", "Keep it running.", True),
        ("other", "Keep it running.", False),
        ("judge", "Keep the judge running", False),
    ],
)
def test_an_abstract_socket_of_which_verification_has_the_name_counts(
    name: str, instruction: str, is_cause: bool
) -> None:
    process = Process("x", sockets=(f"@{name}",))
    causes = causes_of(Changed(told={"judge"}), Seen({}, processes=(process,)), Asked(None, instruction))
    assert bool(causes.processes) is is_cause


def test_the_socket_of_a_service_is_its_own_if_the_instruction_speaks_of_it() -> None:
    path = "/run/serverd/any.sock"
    seen = Seen({}, processes=(Process("x", sockets=(path,)),))
    changed = Changed((FileChange(path, ChangeKind.ADDED),), named={path})
    found = [causes_of(changed, seen, Asked(None, f"Keep {it} running.")) for it in ("a server", "it")]
    assert [bool(one) for one in found] == [False, True]


def test_a_new_file_beside_what_verification_loads_first_is_no_work_even_if_nobody_knows_who_read_it() -> None:
    ended: dict[str, Any] = {"program": WatchProgram(99, "/", ("x",)), "solution": None, "instruction": ASKS}
    assert not judged("/opt/x/y", **ended)
    assert judged("/opt/x/y", first=("/opt/x/t", "/tests/test.sh", "/app/out"), **ended)


@pytest.mark.parametrize(
    ("targets", "written", "is_cause"),
    [
        ({"/app/y": "/app/z", "/app/z": "/dev/null"}, "/dev/null", True),
        ({"/app/y": "/app/z"}, "/dev/null", False),
        ({}, "/app/y", True),  # a pipe
        ({}, "/app/z", False),
    ],
)
def test_a_new_link_or_pipe_that_verification_writes_to_is_no_work(
    targets: dict[str, str], written: str, is_cause: bool
) -> None:
    changed = Changed((FileChange("/app/y", ChangeKind.ADDED),), targets=targets)
    seen = Seen({}, written=frozenset({written}))
    assert bool(causes_of(changed, seen, Asked(None, ASKS, "/app"))) is is_cause


@pytest.mark.parametrize(
    ("socket", "is_cause"), [("unix /run/judge", True), ("unix @judge", True), ("unix /run/other", False)]
)
def test_a_socket_of_which_verification_has_the_name_counts_if_it_is_new(socket: str, is_cause: bool) -> None:
    seen = Seen({}, sockets=(socket,))
    assert bool(causes_of(Changed(told={"judge"}), seen, Asked(None, "Keep it running.")).sockets) is is_cause
    assert not causes_of(Changed(told={"judge"}), seen, Asked(None, "Keep the judge running.")).sockets


def test_a_line_in_a_setting_may_be_all_of_the_work_where_no_solution_tells() -> None:
    """An honest variable in /etc/profile was graded 0, as it earned the reward "without the work"."""
    changes = (FileChange(path, ChangeKind.CHANGED) for path in ("/etc/profile", "/usr/lib/x"))
    causes = [causes_of(Changed((one,), {one.path}), Seen({one.path: 0}), Asked(None, "")) for one in changes]
    assert [one.may_be_work for one in causes] == [True, False]


def test_a_new_folder_that_the_instruction_names_is_work_whatever_is_opened_first() -> None:
    path, text = "/srv/site.git/hooks/x", "Make the repository /srv/site.git."
    facts: dict[str, Any] = {"solution": None, "instruction": text, "first": ()}
    assert not judged(path, made={"/srv/site.git", "/srv/site.git/hooks"}, **facts)
    assert judged(path, **facts)


@pytest.mark.parametrize(
    ("path", "instruction", "facts", "is_cause"),
    [
        ("/var/spool/cron/crontabs/root", "Make a cron job.", {}, False),
        ("/var/spool/cron/crontabs/root", "Make a job.", {}, True),
        ("/var/spool/cron/root", "Make a cron job.", {"made": {"/var/spool/cron"}}, True),  # any name would do
        ("/etc/sudoers.d/x", "They may use sudo.", {}, False),
        ("/etc/sudoers.d/x", "They may use sudo.", {"program": TEST}, True),  # it starts others
        ("/etc/ssh/sshd_config.d/x", "Configure sshd.", {}, False),
        ("/etc/ssh/sshd_config", "Configure sshd.", {}, False),
        ("/etc/profile.d/cron.sh", "Make a cron job.", {}, True),
        ("/etc/profile.d/x.sh", "Mind the profile.", {}, True),  # code
        ("/etc/tool/toolrc", "Configure the tool.", {}, True),
        ("/etc/tool/tool.conf", "Configure the tool.", {}, False),
        ("/etc/tool/tool.conf", "Configure the tool.", {"is_text": lambda _: False}, True),
        ("/etc/tool/tool.conf", "Ask /opt/tool.", {}, True),  # a path tells of itself alone
        ("/etc/tool.conf", "Configure the tool.", {}, True),  # any name would do
        ("/etc/sudoers", "They may use sudo.", {"kind": ChangeKind.CHANGED}, False),
        ("/etc/ssl/certs/x.pem", "Make a certificate.", {}, False),
        ("/etc/ld.so.conf.d/x.conf", "Configure it.", {}, True),
        ("/app/.git/hooks/pre-commit", "A hook shall refuse it.", {}, False),
        ("/app/.git/hooks/pre-commit", "Refuse it.", {}, True),
        ("/app/.hooks/more/x", "A hook shall refuse it.", {"made": {"/app/.hooks", "/app/.hooks/more"}}, True),
        ("/root/.config/hooks/x", "A hook shall refuse it.", {}, True),
        ("/home/dev/.ssh/config", "By SSH.", {"made": {"/home/dev/.ssh"}}, False),
        ("/home/dev/.ssh/more/config", "By SSH.", {"made": {"/home/dev/.ssh"}}, True),
    ],
)
def test_what_an_instruction_speaks_of_has_settings_and_state_of_its_own(
    path: str, instruction: str, facts: dict[str, Any], is_cause: bool
) -> None:
    starts = facts.pop("program", None) is not None
    programs = {9: WatchProgram(5, "/", ("x",)), 5: TEST} | ({7: WatchProgram(9, "/", ("y",))} if starts else {})
    seen = Seen({"/tests/test.sh": 0, path: 1}, readers={"/tests/test.sh": (5,), path: (9,)}, programs=programs)
    change = FileChange(path, facts.pop("kind", ChangeKind.ADDED))
    changed = Changed((change,), {path}, **facts)
    assert bool(causes_of(changed, seen, Asked(None, instruction, "/app"))) is is_cause


def test_elsewhere_a_new_file_that_the_work_reads_is_work_and_a_changed_one_is_not() -> None:
    facts: dict[str, Any] = {"solution": None, "instruction": ASKS}
    assert not judged("/opt/x", **facts)
    assert judged("/opt/x", kind=ChangeKind.CHANGED, **facts)


def test_what_is_opened_after_a_new_folder_of_the_work_is_opened_after_the_work() -> None:
    text, folder = "Make the repository /srv/site.git.", "/srv/site.git"
    changed = Changed((FileChange("/app/z", ChangeKind.ADDED),), ["/app/z"], made={folder})
    opened = [dict(zip(order, (0, 1), strict=True)) for order in ((f"{folder}/a", "/app/z"), ("/app/z", f"{folder}/a"))]
    assert [bool(causes_of(changed, Seen(one), Asked(None, text, "/app"))) for one in opened] == [False, True]


@pytest.mark.parametrize(("target", "is_cause"), [("/etc/tool/all/x", False), ("/usr/bin/true", True)])
def test_a_link_among_settings_is_work_unless_it_leads_to_a_program(target: str, is_cause: bool) -> None:
    path = "/etc/tool/on/x"
    changed = Changed((FileChange(path, ChangeKind.ADDED),), targets={path: target})
    assert bool(causes_of(changed, Seen({}), Asked(None, "Configure the tool.", "/app"))) is is_cause
