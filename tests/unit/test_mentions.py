"""Words by which a verification may ask for a file that it does not open."""

from pathlib import Path

from harbortrainer.docker.integrity.mentions import names_of, words_of, words_of_tests
from harbortrainer.docker.integrity.watch import Seen, WatchProgram


def test_words_come_from_tests_from_what_runs_and_from_what_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "tests" / "sub").mkdir(parents=True)
    (tmp_path / "tests" / "sub" / "check.py").write_text("exists('/opt/lenient.flag')")
    image = {
        "/opt/check": b"[ -e skip ]",
        "/usr/bin/judge": b"find mercy",
        "/usr/lib/x.py": b"library",
        "/etc/large": b"large " * 100_000,
        "/etc/group": b"src:x:40:",
    }
    program = WatchProgram(1, "/usr/bin", ("/bin/sh", "judge"))
    told = words_of(tmp_path, Seen(dict.fromkeys(image, 0), programs={7: program}), image.get)
    assert told == {"exists", "opt", "lenient.flag", "-e", "skip", "find", "mercy"}
    assert words_of_tests(tmp_path) == {"exists", "opt", "lenient.flag", "check.py"}


def test_a_file_has_its_name_and_those_of_folders_that_were_made_for_it() -> None:
    assert names_of("/srv/new/a.txt", {"/srv/new", "/other"}) == {"a.txt", "new"}
    assert names_of("/usr/lib/a.py", ()) == {"a.py", "a"}
