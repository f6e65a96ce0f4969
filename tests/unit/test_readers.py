"""Programs that read settings: those that tests start for it, and others, which settings make say anything."""

from dataclasses import replace

import pytest

from harbortrainer.docker.integrity.living import MOST_ARGUMENTS
from harbortrainer.docker.integrity.programs import ORPHANS
from harbortrainer.docker.integrity.readers import LOST, Readers
from harbortrainer.docker.integrity.watch import Seen, WatchProgram

SETTING = "/etc/tool/tool.conf"
SET_UP, TESTS, CHILD = 1, 2, 3
PROGRAMS = {
    SET_UP: WatchProgram(0, "/", ("bash", "/tests/test.sh")),
    TESTS: WatchProgram(SET_UP, "/", ("python3", "/tests/test_outputs.py")),
}


def asked(program: WatchProgram | None, *others: WatchProgram, readers: tuple[int, ...] = (CHILD,)) -> bool:
    """Whether a process was asked to read SETTING, beside others from 10 on."""
    programs = PROGRAMS | ({CHILD: program} if program else {}) | dict(enumerate(others, 10))
    opened = ("/tests/test.sh", "/tests/test_outputs.py", SETTING)
    read = {opened[0]: (SET_UP,), opened[1]: (TESTS,), SETTING: readers}
    seen = Seen({path: place for place, path in enumerate(opened)}, readers=read, programs=programs)
    return Readers(seen, {}).are_asked(SETTING, {"tool"})


@pytest.mark.parametrize(
    ("words", "is_asked"),
    [
        (("toolctl", "-T"), True),
        (("toolctl", "check it"), False),  # code
        (("toolctl", "http://127.0.0.1/"), False),
        (("grep", "-q", "on off", SETTING), True),  # as data
        (("grep", "-q", "on off", "etc/tool/tool.conf"), True),
        (("toolctl", *["x"] * MOST_ARGUMENTS)[:MOST_ARGUMENTS], False),  # there may be more
        (("",), True),  # it had ended
    ],
)
def test_a_program_without_code_or_with_the_files_path_as_argument_was_asked_to_read_it(
    words: tuple[str, ...], is_asked: bool
) -> None:
    assert asked(WatchProgram(TESTS, "/", words)) is is_asked


def test_a_program_that_starts_others_was_asked_only_under_the_settings_name() -> None:
    names = {"/usr/bin/tool": True, "/usr/bin/other": False}
    assert {name: asked(WatchProgram(TESTS, "/", (name,)), WatchProgram(CHILD, "/", ("x",))) for name in names} == names


def test_what_sets_tests_up_or_runs_the_file_was_not_asked() -> None:
    assert not asked(WatchProgram(SET_UP, "/", ("toolctl",)))
    assert not asked(WatchProgram(TESTS, "/", ("sh", SETTING), ran=(SETTING,)))


def test_of_several_readers_all_that_are_known_were_asked() -> None:
    plain, code = WatchProgram(TESTS, "/", ("toolctl",)), WatchProgram(TESTS, "/", ("sh", "-c", "a b"))
    assert asked(plain, LOST, readers=(CHILD, 10)) and asked(plain, readers=(CHILD, TESTS))
    assert not asked(plain, code, readers=(CHILD, 10))
    assert asked(LOST) and not asked(LOST, WatchProgram(CHILD, "/", ("x",)))


def test_what_ran_the_file_and_had_ended_was_not_asked() -> None:
    assert not asked(None, readers=(99,)) and not asked(replace(LOST, ran=(SETTING, "/bin/sh")))


def test_where_the_tests_are_one_file_what_it_starts_was_asked() -> None:
    programs = {SET_UP: PROGRAMS[SET_UP], CHILD: WatchProgram(SET_UP, "/", ("toolctl",))}
    read = {"/tests/test.sh": (SET_UP,), SETTING: (CHILD,)}
    seen = Seen({"/tests/test.sh": 0, SETTING: 1}, readers=read, programs=programs)
    assert Readers(seen, {}).are_asked(SETTING, ())


def test_what_was_above_and_had_ended_changes_nothing() -> None:
    """A shell that a test had started is above the reader: it was looked at, or it had ended before."""
    plain = WatchProgram(10, "/", ("cat", SETTING))
    assert asked(plain, WatchProgram(TESTS, "/", ("bash",))) and asked(plain, LOST) and asked(plain)
    assert asked(LOST, WatchProgram(TESTS, "/", ("bash",)))


def test_tests_that_were_brought_in_another_order_are_the_same() -> None:
    """An upload opens them by their names, before verification does."""
    read = {"/tests/check.sh": (99, TESTS), "/tests/test.sh": (99, SET_UP), SETTING: (CHILD,)}
    programs = PROGRAMS | {CHILD: WatchProgram(TESTS, "/", ("cat", SETTING))}
    seen = Seen({path: place for place, path in enumerate(read)}, readers=read, programs=programs)
    assert Readers(seen, {}).are_asked(SETTING, ())
    of_set_up = replace(seen, programs=PROGRAMS | {CHILD: WatchProgram(SET_UP, "/", ("cat", SETTING))})
    assert not Readers(of_set_up, {}).are_asked(SETTING, ())


NEW, MAKEFILE = "/tests/conftest.py", "/app/Makefile"


def wrote(program: WatchProgram, *above: WatchProgram, opens: int = CHILD, path: str = NEW) -> bool:
    """Whether a process, the last of `above` from 10 on, wrote `path` for the work: one of them opened MAKEFILE."""
    line = [*enumerate(above, 10), (CHILD, program)]
    parents = [TESTS, *(pid for pid, _ in line)]
    programs = PROGRAMS | {pid: replace(one, parent=above) for (pid, one), above in zip(line, parents, strict=False)}
    read = {"/tests/test.sh": (SET_UP,), "/tests/test_outputs.py": (TESTS,), MAKEFILE: (TESTS, opens)}
    seen = Seen(
        {one: place for place, one in enumerate(read)}, readers=read, programs=programs, writers={path: (CHILD,)}
    )
    return Readers(seen, {}).written_by({MAKEFILE}) == {path}


def program(*words: str) -> WatchProgram:
    return WatchProgram(0, "/app", words)


def test_what_the_work_runs_writes_for_it() -> None:
    assert (
        wrote(program("sh", MAKEFILE))
        and wrote(program("x"))
        and wrote(WatchProgram(0, "/", (), ran=(MAKEFILE,)), opens=0)
    )
    assert wrote(program("sh", "-c", "x"), program("make"), opens=10)
    assert wrote(program("x"), program("make"), program("sh"), opens=10, path="/logs/verifier/reward.txt")


def test_what_tests_tell_to_write_there_does_not_write_for_the_work() -> None:
    assert not wrote(program("cp", "Makefile", "/tests")) and not wrote(program("ld", "-o", NEW, "Makefile"))
    assert not wrote(program("x"), opens=TESTS)
    assert not wrote(program("python3", "-c", "x"), path="/logs/verifier/reward.txt")
    assert not wrote(program("x"), program("pytest", "/tests/test_outputs.py"), opens=10)


def test_an_orphan_may_be_the_works_and_who_wrote_a_reward_and_had_ended() -> None:
    assert wrote(program("x"), replace(LOST, words=("sleep",)), opens=0) is False
    read, reward = {"/tests/test.sh": (SET_UP,)}, "/logs/verifier/reward.txt"
    programs = PROGRAMS | {CHILD: WatchProgram(ORPHANS, "/", ("sleep",)), 10: replace(program("x"), parent=CHILD)}
    seen = Seen(
        {"/tests/test.sh": 0}, readers=read, programs=programs, writers={NEW: (10,), reward: (11,), "/usr/x": (11,)}
    )
    assert Readers(seen, {}).written_by(set()) == {NEW, reward}
