"""On what a reward may depend beside what the task asks for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from harbortrainer.docker.integrity.asked import Asked, Footprint, sum_of
from harbortrainer.docker.integrity.cause import Changed, causes_of
from harbortrainer.docker.integrity.change import ChangeKind, FileChange, is_made_anew
from harbortrainer.docker.integrity.watch import Process, Seen, WatchProgram
from harbortrainer.venues.harbor.grading import unasked
from tests.support.causes import ASKS, FILE, GONE, LOG, PLAIN, SCRATCH, SOLUTION, TEST, WORK, found, judged


def test_a_name_of_several_lines_is_a_name() -> None:
    odd = FileChange("/usr/lib/a\nb.pth", ChangeKind.ADDED)
    assert causes_of(Changed((odd,)), Seen({}), Asked(None, "", "/app")).changes == (odd,)
    assert is_made_anew("/tests/a\nb")


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
        (FileChange("/logs/agent/x", ChangeKind.ADDED), {}, False),
        (FileChange("/logs/agent/x", ChangeKind.ADDED), {"/logs/agent/x": 0}, True),
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
    assert found({"/usr/x": 0}, FILE, SCRATCH).unasked == (FILE, SCRATCH)


def test_a_file_that_verification_may_ask_for_by_name_counts_unopened() -> None:
    changed, other = Changed((SCRATCH,), PLAIN, named={"/tmp/x"}), Changed((SCRATCH,), PLAIN, named={"/tmp/z"})
    assert [causes_of(one, Seen({}), Asked(SOLUTION, "")).names for one in (changed, other)] == [["/tmp/x"], []]


def test_a_strange_file_counts_unopened_unless_a_package_manager_lists_it_or_a_service_may_need_it() -> None:
    changed, packaged = Changed((FILE,), PLAIN), Changed((FILE,), PLAIN, packaged={"/usr/x"})
    new, beside = Changed((FILE,), PLAIN, made={"/usr"}), Seen({}, processes=(Process("server", (80,)),))
    found = [(changed, Seen({})), (packaged, Seen({})), (changed, beside), (new, Seen({})), (new, beside)]
    counts = [bool(causes_of(one, seen, Asked(SOLUTION, ""))) for one, seen in found]
    assert counts == [True, False, True, True, False]


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


@pytest.mark.parametrize(("targets", "is_cause"), [({"/app/out": "/opt/t"}, False), ({}, True)])
def test_what_is_opened_after_the_target_of_the_works_link_is_opened_after_the_work(
    targets: Mapping[str, str], is_cause: bool
) -> None:
    package = FileChange("/usr/lib/p/x.py", ChangeKind.ADDED)
    changed = Changed((WORK, package), {package.path}, packaged={package.path}, targets=targets)
    found = causes_of(changed, Seen({"/opt/t": 0, package.path: 1}), Asked(SOLUTION, "Install the packages."))
    assert found.names == ([package.path] if is_cause else [])


def test_what_describes_a_package_is_no_hook() -> None:
    path = "/usr/lib/p.dist-info/METADATA"
    other = WatchProgram(5, "/", ("pytest",))
    assert judged(path, first=(), program=other).hooked
    assert not judged(path, first=(), program=other, packaged=(path,), about=(path,)).hooked


@pytest.mark.parametrize("path", ["/usr/bin/env", "/dev/null", "/tests/test.sh", "/etc/passwd", "/proc/meminfo"])
def test_what_every_program_opens_is_no_work(path: str) -> None:
    assert judged("/usr/lib/x", first=(path,), instruction=f"Use {path}.", program=TEST).hooked


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


def test_network_files_count_unless_they_are_asked_for() -> None:
    causes = causes_of(Changed(mounted=("/etc/hosts", "/dev")), Seen({}), Asked(None, "Add a line to /etc/hosts"))
    assert (causes.mounted, causes.names) == (("/dev",), ["/dev"])
    seen = [causes_of(Changed(mounted=(one,)), Seen({}), Asked(None, "")) for one in ("/", "/dev", "/etc/hosts")]
    assert [(bool(one), one.hooked) for one in seen] == [(True, True), (True, True), (True, False)]


@pytest.mark.parametrize(("instruction", "may_be"), [("Make a cron job.", True), ("Do it.", False)])
def test_settings_of_what_an_instruction_speaks_of_may_be_another_way(instruction: str, may_be: bool) -> None:
    found = judged("/etc/cron.d/x", instruction=instruction, first=(), is_text=lambda _: False)
    assert (found.hooked, found.may_be_work) == (not may_be, may_be)


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


ADDED, CHANGED = ChangeKind.ADDED, ChangeKind.CHANGED


@pytest.mark.parametrize(
    ("change", "instruction", "shadows", "is_cause"),
    [
        (FileChange("/usr/bin/tool.py", CHANGED), "Change tool.py.", False, (True, True)),
        (FileChange("/usr/bin/tool.py", CHANGED), "Change /usr/bin/tool.py.", False, (False, True)),
        (FileChange("/usr/bin/tool.py", ADDED), "Write tool.py.", False, (False, False)),
        (FileChange("/usr/bin/tool.py", ADDED), "Write tool.py.", True, (True, True)),
        (FileChange("/usr/bin/tool.py", ADDED), "Write /usr/bin/tool.py.", True, (False, True)),
        (FileChange("/usr/local/bin/tool.py", CHANGED), "Change tool.py.", False, (False, False)),
        (FileChange("/etc/tool.conf", CHANGED), "Change tool.conf.", False, (False, False)),
        (FileChange("/etc/tool.conf", CHANGED, True, shallow=True), "Change tool.conf.", False, (False, True)),
    ],
)
def test_a_solution_tells_better_than_a_word_of_programs_and_rights_of_folders(
    change: FileChange, instruction: str, shadows: bool, is_cause: tuple[bool, bool]
) -> None:
    changed = Changed((change,), {change.path}, shadows={change.path} if shadows else ())
    asked = [Asked(one, instruction, "/app") for one in (None, SOLUTION)]
    assert tuple(bool(causes_of(changed, Seen({change.path: 0}), one)) for one in asked) == is_cause


def test_a_program_of_the_image_is_not_asked_for_by_a_word() -> None:
    path, asks = "/usr/bin/python3.11", "Use python3.11."
    assert judged(path, instruction=asks, kind=ChangeKind.CHANGED).changes
    assert judged(path, instruction=asks, shadows={path}).changes


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


def test_the_solutions_program_with_other_content_is_a_cause_but_tells_nothing_of_the_work() -> None:
    """Another version has other content, too: what the reward is without it decides."""
    path = "/usr/lib/python3/dist-packages/start.py"
    asked = Asked(Footprint(frozenset({path, "/app/out"}), sums=frozenset({f"{path} {sum_of(path, b'own')}"})), "")
    changed = Changed((FileChange(path, ChangeKind.ADDED), WORK), {path, "/app/out"})
    seen = Seen({path: 0, "/app/out": 1})
    assert not causes_of(changed, seen, asked).names
    asked.altered = {path}
    causes = causes_of(changed, seen, asked)
    assert causes.names == [path] and not causes.hooked and causes.may_be_work


def test_the_time_of_its_source_is_no_content_of_a_compiled_module() -> None:
    old, new = bytes(16) + b"code", b"\1" * 16 + b"code"
    assert sum_of("/usr/lib/a.pyc", old) == sum_of("/usr/lib/a.pyc", new) != sum_of("/usr/lib/a.pyc", new + b"!")
    assert sum_of("/usr/lib/a.so", old) != sum_of("/usr/lib/a.so", new)
