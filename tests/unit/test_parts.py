"""The tests that `--since` leaves out are those of parts that did not change (tests/support/parts.py)."""

import subprocess
from pathlib import Path

import pytest

from tests.support.parts import CORE, EVERY, PARTS, changed_since, concerned, part_of

TAU, HOSTS = "tests/unit/test_tau_domain.py", "tests/integration/test_hosts.py"
SERVER, LOOP = "tests/conformance/test_training.py", "tests/unit/test_trainer.py"
EACH = {TAU, HOSTS, SERVER, LOOP}


@pytest.mark.parametrize(
    ("changed", "run"),
    [
        ("src/harbortrainer/bundled/tau/user.py", {TAU}),
        ("src/harbortrainer/bundled/hosts/node.py", {HOSTS}),
        ("server/repairs/losses.py", {SERVER}),
        ("src/harbortrainer/learning/pace.py", {LOOP}),
        ("docs/speed.md", set()),
        ("CHANGELOG.md", set()),
        ("tests/support/report_page.js", EACH),
        ("tests/support/fake_loop.py", {LOOP}),
        ("tests/conformance/parts.py", {SERVER}),
        (TAU, {TAU}),
        ("requirements.lock", EACH),
        ("tests/conftest.py", EACH),
    ],
)
def test_a_part_is_tested_where_it_changed(changed: str, run: set[str]) -> None:
    assert {test for test in EACH if concerned(test, frozenset({changed}))} == run
    assert concerned("tests/unit/test_docs.py", frozenset({changed})), "it compares pages with each part"


def test_each_part_has_files_and_tests() -> None:
    """A folder that was renamed would leave its part's tests out for ever."""
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert {part_of(file) for file in files if not file.startswith("tests/")} == {CORE, EVERY, *PARTS}
    assert {part_of(file) for file in files if file.startswith("tests/") and "/test_" in file} == {CORE, *PARTS}


def test_what_git_knows_has_changed_committed_or_not(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "--quiet")
    for name in ("old", "changed"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    (tmp_path / "changed").write_text("otherwise")
    (tmp_path / "new").touch()
    assert changed_since("HEAD", tmp_path) == {"changed", "new"}
    with pytest.raises(ValueError, match="--since=nothing: fatal: bad revision 'nothing'; name a commit or a branch"):
        changed_since("nothing", tmp_path)
