"""What a container has changed of its image, and which processes are services: decided without a daemon."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.docker.box.container import NETWORK_FILES
from harbortrainer.docker.box.network_files import READ_NETWORK, added, is_same, parse_network
from harbortrainer.docker.integrity import restore
from harbortrainer.docker.integrity.agent_phases import _END_VERIFIER
from harbortrainer.docker.integrity.change import ChangeKind, FileChange
from harbortrainer.docker.integrity.layer import OverlayLayer
from harbortrainer.docker.integrity.listed_layer import ListedLayer
from harbortrainer.docker.integrity.processes import _Process, _services
from harbortrainer.harbor import MODE
from tests.support.deep_folder import deepen
from tests.support.fake_engine import use_engine


@pytest.fixture
def overlay(tmp_path: Path) -> tuple[Path, Path, OverlayLayer]:
    """A container's folder over an image with /usr/bin/cat, /lib -> usr/lib and an empty /root."""
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for folder in (lower / "usr/bin", lower / "usr/lib", lower / "root", upper):
        folder.mkdir(parents=True)
    (lower / "usr/bin/cat").touch()
    (lower / "lib").symlink_to("usr/lib")
    return upper, lower, OverlayLayer(str(upper), [str(tmp_path / "none"), str(lower)])


def plain(layer: Any, root: str) -> list[tuple[str, str, bool]]:
    return [(one.path, one.kind.value, one.folder) for one in layer.changes(root)]


def test_a_layer_tells_what_was_added_and_changed(overlay: tuple[Path, Path, OverlayLayer]) -> None:
    upper, _, found = overlay
    (upper / "usr/bin").mkdir(parents=True)
    (upper / "usr/bin/cat").touch()
    (upper / "usr/bin/new").mkdir()
    (upper / "usr/bin/new/x").write_text("x")
    expected = [("/usr/bin/cat", "changed", False), ("/usr/bin/new", "added", True), ("/usr/bin/new/x", "added", False)]
    assert plain(found, "/usr") == expected
    assert plain(found, "/usr/bin/new/x") == expected[2:]
    assert plain(found, "/usr/lib") == plain(found, "/etc") == []
    assert found.content("/usr/bin/new/x") == b"x" and found.content("/usr/bin/new") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes whiteouts")
def test_a_layer_tells_what_was_removed_or_made_again(overlay: tuple[Path, Path, OverlayLayer]) -> None:
    upper, lower, found = overlay
    (upper / "usr").mkdir()
    os.mknod(upper / "usr/lib", 0o600 | 0o020000, 0)
    assert plain(found, "/usr") == [("/usr/lib", "removed", False)]
    (lower / "usr/bin/tac").touch()
    (upper / "usr/bin").mkdir()
    os.setxattr(upper / "usr/bin", "trusted.overlay.opaque", b"y")
    (upper / "usr/bin/cat").touch()
    again = OverlayLayer(str(upper), [str(lower)])
    assert plain(again, "/usr/bin") == [("/usr/bin/tac", "removed", False), ("/usr/bin/cat", "changed", False)]
    assert again.image.find("/usr/lib") == str(lower / "usr/lib")


def test_a_link_in_place_of_a_folder_is_a_change_and_is_not_followed(
    overlay: tuple[Path, Path, OverlayLayer], tmp_path: Path
) -> None:
    upper, _, found = overlay
    (tmp_path / "evil/bin").mkdir(parents=True)
    (tmp_path / "evil/bin/cat").touch()
    (upper / "usr").symlink_to(tmp_path / "evil")
    (upper / "root").mkdir()
    (upper / "root/.cache").symlink_to("/evil")
    assert {(one.path, one.shallow) for one in found.changes("/usr/bin")} == {("/usr", True), ("/usr/bin", False)}
    assert list(found.changes("/root/.cache/uv")) == [FileChange("/root/.cache", ChangeKind.ADDED, shallow=True)]
    assert found.names("/usr/bin") == [] and found.content("/usr/bin/cat") is None


def test_a_folder_as_deep_as_can_be_is_listed(overlay: tuple[Path, Path, OverlayLayer]) -> None:
    upper, _, found = overlay
    (upper / "usr").mkdir()
    deepen(upper / "usr", 1400, "dd")
    changes = list(found.changes("/usr"))
    subprocess.run(["rm", "-r", upper / "usr"], check=True)  # pytest could not
    *folders, deepest = changes
    assert 1000 < len(folders) < 1400 and all(one.folder for one in folders)
    assert (deepest.path, deepest.folder) == (folders[-1].path, False), "what lies deeper counts as its content"
    assert found.is_plain(deepest.path) and not found.is_plain(folders[0].path)


def test_no_more_of_a_file_is_read_than_a_limit(overlay: tuple[Path, Path, OverlayLayer]) -> None:
    upper, _, found = overlay
    for name in ("a", "b"):
        (upper / name).touch()
        os.truncate(upper / name, 2**40)
    assert found.content("/a") is None


def test_a_plain_file_has_content_and_the_images_rights(overlay: tuple[Path, Path, OverlayLayer]) -> None:
    upper, lower, found = overlay
    for name in ("new", "same", "other", "empty"):
        (upper / name).write_text("" if name == "empty" else "x")
    for name in ("same", "other"):
        (lower / name).touch()
    (lower / "other").chmod(0o755)
    (upper / "link").symlink_to("new")
    (upper / "root").mkdir()
    names = ("new", "same", "other", "empty", "link", "root", "none")
    assert [name for name in names if found.is_plain(f"/{name}")] == ["new", "same"]


def test_a_file_of_which_only_the_time_is_new_is_not_plain(overlay: tuple[Path, Path, OverlayLayer]) -> None:
    upper, lower, found = overlay
    for name, text in (("opened", "ab"), ("touched", "ab"), ("written", "cd")):
        for folder, content in ((lower, "ab"), (upper, text)):
            (folder / name).write_text(content)
            os.utime(folder / name, (1, 1 if folder == lower or name == "opened" else 2))
    (upper / "linked").hardlink_to(upper / "opened")
    for folder in (lower, upper):
        (folder / "read").write_text("ab")
        os.utime(folder / "read", (2**32 if folder == upper else 1, 1))
    names = ("opened", "touched", "written", "read")
    assert [name for name in names if found.is_plain(f"/{name}")] == ["written"], "new names and times of reading"
    (upper / "linked").unlink()
    assert [name for name in names if found.is_plain(f"/{name}")] == ["opened", "written"]
    unread = OverlayLayer(str(upper), [str(lower)], compared=2)
    assert [name for name in names if unread.is_plain(f"/{name}")] == ["opened"], "more than is compared"


def test_new_rights_of_an_old_folder_are_a_change(overlay: tuple[Path, Path, OverlayLayer]) -> None:
    upper, _, found = overlay
    (upper / "root").mkdir()
    assert list(found.changes("/root")) == []
    (upper / "root").chmod(0o700)
    changed = [("/root", ChangeKind.CHANGED, True)]
    assert [(one.path, one.kind, one.shallow) for one in found.changes("/root")] == changed


@pytest.mark.parametrize("path", ["/usr", "/tmp/sub"])
def test_a_new_time_of_an_old_folder_without_new_entries_is_a_change_where_nobody_works(
    overlay: tuple[Path, Path, OverlayLayer], path: str
) -> None:
    upper, lower, found = overlay
    for folder in (upper, lower):
        Path(f"{folder}{path}").mkdir(parents=True, exist_ok=True)
    os.utime(f"{upper}{path}", (1, 1))
    assert [one.path for one in found.changes(path)] == ["/usr"] * (path == "/usr")
    (upper / "usr").mkdir(exist_ok=True)
    (upper / "usr/new").touch()
    assert [one.path for one in found.changes("/usr")] == ["/usr/new"]


def test_docker_diff_says_the_same() -> None:
    class Listed(ListedLayer):
        def _is_folder(self, path: str) -> bool:
            return path in ("/usr", "/usr/bin")

        def _has_other_rights(self, folder: str) -> bool:
            return False

    kinds = {"/usr": 0, "/usr/bin": 0, "/usr/bin/cat": 0, "/usr/bin/new": 1, "/usr/bin/new/x": 1, "/bin": 0, "/opt": 2}
    listed = Listed("x", [{"Path": path, "Kind": kind} for path, kind in kinds.items()])
    expected = [("/usr/bin/cat", "changed", False), ("/usr/bin/new", "added", True), ("/usr/bin/new/x", "added", False)]
    assert plain(listed, "/usr") == expected
    assert list(listed.changes("/bin/sub")) == [
        FileChange("/bin", ChangeKind.CHANGED, shallow=True),
        FileChange("/bin/sub", ChangeKind.REMOVED),
    ]
    assert plain(listed, "/opt") == [("/opt", "removed", False)]
    assert sorted(listed.names("/usr/bin")) == ["cat", "new"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads a container's folder")
def test_a_survey_has_a_limit_and_leaves_out_what_verification_makes_again(
    overlay: tuple[Path, Path, OverlayLayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    upper, lower, _ = overlay
    driver = {"Name": "overlay2", "Data": {"UpperDir": str(upper), "LowerDir": str(lower)}}
    use_engine(monkeypatch, SimpleNamespace(inspect_container=lambda _: {"GraphDriver": driver}))
    for name in ("logs/verifier", "tests", "app"):
        (upper / name).mkdir(parents=True)
        (upper / name / "x").touch()
    assert [one.path for one in restore.survey(str(upper), {}).changes] == ["/app", "/app/x"]
    assert [(len((one := restore.survey(str(upper), {}, most)).changes), one.whole) for most in (1, 2)] == [
        (1, False), (2, True),
    ]  # fmt: skip


def test_what_has_gone_while_it_was_listed_is_no_change(overlay: tuple[Path, Path, OverlayLayer]) -> None:
    upper, _, found = overlay
    (upper / "usr/gone").mkdir(parents=True)
    for name in ("a", "b", "gone/x"):
        (upper / "usr" / name).touch()
    listing = found.changes("/usr")
    assert next(listing).path == "/usr/a"
    (upper / "usr/b").unlink()
    (upper / "usr/gone/x").unlink()
    (upper / "usr/gone").rmdir()
    assert list(listing) == []


def test_network_files_are_read() -> None:
    listed = "/tests\nN/etc/hosts 127.0.0.1 localhost\nN/etc/hosts \nE/etc/hosts\nN/etc/hostname cut short\n"
    assert parse_network(listed) == {"/etc/hosts": "127.0.0.1 localhost\n\n"}


def read_by(shell: str, file: Path) -> str:
    script = READ_NETWORK.replace(" ".join(NETWORK_FILES), str(file))
    ran = subprocess.run([shell, "-c", script], capture_output=True, check=False)
    listed = ran.stdout.decode(errors="replace").replace(str(file), "/etc/hosts")
    return parse_network(listed)["/etc/hosts"]


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_network_files_are_compared(tmp_path: Path, shell: str) -> None:
    file = tmp_path / "hosts"
    cases = [
        ("a b\n\\c\n", "a b\n\\c\n", True), ("a b\n\\c\n", "a b\n\\c", True), ("a b\n\\c\n", "a b\n\\c\nmore\n", False),
        ("a b\n\\c\n", "", False), ("a b\n", "a b\x0cmore\n", False), ("a b\n", "a b\\n more\n", False),
        ("172.17.0.2\tharbor\na b\n", "a b\n172.17.0.9\tharbor\n", True),
        ("172.17.0.2\tharbor\na b\n", "a b\n1.2.3.4 x\tharbor\n", False),
        ("172.17.0.2\tharbor\na b\n", "a b\n1.2.3.4\tx\n", False),
    ]  # fmt: skip
    for known, now, same in cases:
        file.write_text(known)
        listed = read_by(shell, file)
        file.write_text(now)
        assert is_same(read_by(shell, file), listed) == same == is_same(now, known), (known, now)


def test_of_a_network_file_the_lines_that_it_has_more_are_told() -> None:
    known = "172.17.0.2\tharbor\n1.1.1.1 a\n"
    assert added("1.1.1.1 a\n172.17.0.9\tharbor\n2.2.2.2 b", known) == "2.2.2.2 b\n"
    assert added("2.2.2.2 b\n1.1.1.1 a\n", known) == added("1.1.1.1 a c\n", known) == ""


def test_of_a_long_network_file_a_part_is_read(tmp_path: Path) -> None:
    (file := tmp_path / "hosts").write_text("x\n" * 1_000_000)
    assert len(read_by("bash", file)) == 2000


def test_removals_pass_every_name_through_a_shell(tmp_path: Path) -> None:
    names = [b"plain", b"a b'c", b'\xff\n"$x', "\u4f60".encode()]
    paths = [os.fsdecode(os.fsencode(tmp_path) + b"/" + name) for name in names]
    for shell in ("bash", "sh"):
        for path in paths:
            Path(path).touch()
        subprocess.run([shell, "-c", "\n".join(restore.removal_scripts(paths))], check=True)
        assert list(tmp_path.iterdir()) == []
        Path(paths[2]).touch()
        (tmp_path / "other").touch()
        listed = f'{tmp_path}/\ufffd\n"$x'  # as `docker diff` has it
        subprocess.run([shell, "-c", "\n".join(restore.removal_scripts([listed]))], check=True)
        assert list(tmp_path.iterdir()) == [tmp_path / "other"]
        (tmp_path / "other").unlink()
    assert len(restore.removal_scripts([f"/{at}" for at in range(401)])) == 3


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_what_a_verifier_left_is_looked_for_until_none_shows_the_mode(tmp_path: Path, shell: str) -> None:
    """A killed process can be read for a while."""
    for process, variables in (("7", f"A=b\0{MODE}=train\0"), ("8", "A=b\0")):
        (tmp_path / process).mkdir()
        (tmp_path / process / "environ").write_text(variables)
    third = f'[ "$(wc -l <{tmp_path}/killed)" -lt 3 ] || rm {tmp_path}/7/environ'
    kill = f'kill() {{ echo "$*" >>{tmp_path}/killed; {third}; }}\n'
    script = kill + _END_VERIFIER.replace("/proc/", f"{tmp_path}/")
    assert subprocess.run([shell, "-c", script], check=False, timeout=300).returncode == 0
    assert (tmp_path / "killed").read_text() == "-s KILL 7\n" * 3


def test_services_are_what_pid_1_started_but_the_terminal() -> None:
    running = [
        _Process(1, 0, "S", "sleep"),
        _Process(5, 1, "S", "nginx"),
        _Process(6, 5, "S", "nginx"),
        _Process(7, 1, "S", "tmux: server"),
        _Process(8, 7, "S", "bash"),
        _Process(9, 0, "S", "bash"),
    ]
    assert _services(running, first=1) == {5, 6}
