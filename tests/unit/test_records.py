"""The files that package managers' records list."""

import base64
import hashlib
import json

import pytest

from harbortrainer.docker.integrity.change import ChangeKind, FileChange
from harbortrainer.docker.integrity.records import records_of

SITE = "/usr/lib/python3"
CODE = b"x = 1\n"
SUM = base64.urlsafe_b64encode(hashlib.sha256(CODE).digest()).rstrip(b"=").decode()
RECORD = f"p/x.py,sha256={SUM},6\np-1.dist-info/METADATA,,\n../../bin/p,,\np/none.py,,\n"
FILES = {
    f"{SITE}/p/x.py": CODE, f"{SITE}/p-1.dist-info/METADATA": b"", f"{SITE}/p-1.dist-info/RECORD": RECORD.encode(),
    "/usr/bin/p": b"", f"{SITE}/other.py": b"",
}  # fmt: skip


def listed(files: dict[str, bytes], *opened: str) -> set[str]:
    changes = [FileChange(path, ChangeKind.ADDED) for path in files]
    return set(records_of(changes, files.get, opened).listed)


def test_a_wheels_record_lists_what_it_added() -> None:
    assert listed(FILES) == {f"{SITE}/p/x.py", f"{SITE}/p-1.dist-info/METADATA", "/usr/bin/p"}
    about = records_of([FileChange(path, ChangeKind.ADDED) for path in FILES], FILES.get, ()).about
    assert about == {f"{SITE}/p-1.dist-info/METADATA"}


@pytest.mark.parametrize(
    ("plugins", "kept"),
    [
        ("[console_scripts]\nq = q.main:run\n[pytest11]\nx = p.x:run [extra]\n", True),
        ("[console_scripts]\nq = q.main:run\n[pytest11]\nx = p.x\ny = double\n", False),
        ("[pytest11]\n  x =  double.x \n", False),
    ],
)
def test_plugins_of_other_packages_are_no_part_of_a_package(plugins: str, kept: bool) -> None:
    path = f"{SITE}/p-1.dist-info/entry_points.txt"
    files = {f"{SITE}/p-1.dist-info/RECORD": f"{RECORD}p-1.dist-info/entry_points.txt,,\n".encode()}
    files = FILES | files | {path: plugins.encode()}
    known = records_of([FileChange(one, ChangeKind.ADDED) for one in files], files.get, ())
    assert (path in known.listed, path in known.about) == (kept, kept)


@pytest.mark.parametrize(("content", "kept"), [(CODE, True), (b"evil\n", False)])
def test_an_opened_file_is_listed_only_with_its_sum(content: bytes, kept: bool) -> None:
    path = f"{SITE}/p/x.py"
    assert (path in listed(FILES | {path: content}, path)) is kept
    assert path in listed(FILES | {path: content}), "nobody opened it"


def test_what_the_image_had_is_no_packages() -> None:
    changes = [FileChange(path, ChangeKind.ADDED if path != f"{SITE}/p/x.py" else ChangeKind.CHANGED) for path in FILES]
    assert f"{SITE}/p/x.py" not in records_of(changes, FILES.get, ()).listed


def test_dpkgs_lists_name_paths_also_below_usr() -> None:
    digest = hashlib.md5(CODE, usedforsecurity=False).hexdigest()
    files = {
        "/var/lib/dpkg/info/p.list": b"/.\n/lib/p.so\n/lib/evil.so\n", "/usr/lib/p.so": CODE, "/usr/lib/evil.so": CODE,
        "/var/lib/dpkg/info/p.md5sums": f"{digest}  lib/p.so\n{'0' * 32}  lib/evil.so\n".encode(),
    }  # fmt: skip
    assert listed(files, "/usr/lib/p.so", "/usr/lib/evil.so") == {"/usr/lib/p.so"}
    moved = {path.replace("/var/lib/dpkg", "/app"): content for path, content in files.items()}
    assert listed(moved) == set(), "a list elsewhere"


@pytest.mark.parametrize("name", ["node_modules/e", "node_modules/e/node_modules/f"])
def test_npms_lock_lists_folders(name: str) -> None:
    lock = json.dumps({"packages": {name: {}, "/usr/node_modules/x": {}, "../node_modules/y": {}, "": {}}}).encode()
    inside = {f"/app/{name}/i.js": b"", "/usr/node_modules/x/i.js": b"", "/node_modules/y/i.js": b"", "/app/z": b""}
    assert listed({"/app/node_modules/.package-lock.json": lock, **inside}) == {f"/app/{name}/i.js"}


@pytest.mark.parametrize("text", [b"", b"[]", b'{"packages": 3}', b"[" * 100_000, b"\xff"])
def test_a_lock_that_cannot_be_read_lists_nothing(text: bytes) -> None:
    assert listed({"/app/node_modules/.package-lock.json": text, "/app/node_modules/e/i.js": b""}) == set()


@pytest.mark.parametrize("text", [b"", b"\0\0", b'"' + b"a" * 200_000, b"\xff\xfe,,\n"])
def test_a_record_that_cannot_be_read_lists_nothing(text: bytes) -> None:
    assert listed(FILES | {f"{SITE}/p-1.dist-info/RECORD": text}) == set()


@pytest.mark.parametrize(("kind", "start"), [("sha256", 64), ("sha512", 4), ("sha1", 2)])
def test_an_opened_file_is_listed_that_is_named_by_its_own_content(kind: str, start: int) -> None:
    name = hashlib.new(kind, CODE).hexdigest()
    folders = "/".join(name[at : at + 2] for at in range(0, start % 64, 2))
    path = "/".join(["/root/.cache", *folders.split(), name[start % 64 :]])
    assert listed({path: CODE}, path) == {path}
    assert listed({path: b"passed"}, path) == listed({path: CODE}) == set()


VENV = "/opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("made", "known"),
    [
        ((), {f"{VENV}/x", "/opt/venv/bin/x"}),  # an environment of the image
        (("/opt/venv", VENV), {f"{VENV}/x", "/opt/venv/bin/x"}),
        ((VENV,), {f"{VENV}/x"}),  # what was made below a folder of the image is no environment
    ],
)
def test_a_wheel_lists_nothing_outside_of_its_environment(made: tuple[str, ...], known: set[str]) -> None:
    record = f"{VENV}/x-1.dist-info/RECORD"
    text = "x,,\n../../../bin/x,,\n../../../../slack,,\n"
    changes = [FileChange(path, ChangeKind.ADDED, folder=True) for path in made]
    files = {record: text.encode(), f"{VENV}/x": b"", "/opt/venv/bin/x": b"", "/opt/slack": b""}
    changes += [FileChange(path, ChangeKind.ADDED) for path in files]
    assert records_of(changes, files.get, ()).listed == known


def test_a_debian_package_lists_nothing_in_folders_of_an_image() -> None:
    files = {"/var/lib/dpkg/info/evil.list": b"/opt/slack\n/usr/bin/evil\n", "/opt/slack": b"", "/usr/bin/evil": b""}
    assert listed(files) == {"/usr/bin/evil"}


def test_the_state_of_a_debian_packages_manager_describes_it_once_one_was_installed() -> None:
    state = FileChange("/var/lib/dpkg/status", ChangeKind.CHANGED)
    record = FileChange("/var/lib/dpkg/info/p.list", ChangeKind.ADDED)
    known = [records_of(changes, {record.path: b"/."}.get, ()) for changes in ([state, record], [state])]
    assert [(state.path in one.listed, state.path in one.about) for one in known] == [(True, True), (False, False)]
