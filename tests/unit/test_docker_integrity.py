"""What counts as tampering, decided without a daemon."""

from pathlib import Path

import pytest

from harbortrainer.docker import restore
from harbortrainer.docker.agent_phases import _parse, _Process, _services, _with_descendants
from harbortrainer.docker.restore import Tools

KNOWN = Tools(
    files=frozenset({"/usr/bin/cat", "/usr/bin/python3", "/usr/lib/libc.so.6"}),
    first={"cat": "/usr/bin/cat", "python3": "/usr/bin/python3"},
    libraries={"libc.so.6": "/usr/lib/libc.so.6"},
    folders=frozenset({"/usr", "/usr/bin", "/usr/lib"}),
    links=frozenset({"/bin", "/lib"}),
)


def test_a_layers_entries_are_found_and_its_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/cat").touch()
    (tmp_path / "etc").symlink_to("/etc")
    (tmp_path / "bin").symlink_to("usr/bin")
    found = restore.touched(restore._Folder(str(tmp_path)), ["/usr/bin", "/bin", "/opt/bin"], ["/etc/passwd"])
    assert found == {"/usr/bin/cat", "/bin", "/etc"}


def test_docker_diff_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"/usr": 0, "/usr/bin": 0, "/usr/bin/cat": 0, "/usr/bin/sub": 0, "/usr/bin/sub/x": 1, "/bin": 0, "/opt": 2}
    changes = restore._Changes("x", [{"Path": path, "Kind": kind} for path, kind in kinds.items()])
    monkeypatch.setattr(changes, "_is_folder", lambda path: path != "/bin")
    found = restore.touched(changes, ["/usr/bin", "/bin", "/opt/bin"], ["/etc/passwd"])
    assert found == {"/usr/bin/cat", "/usr/bin/sub", "/bin", "/opt"}
    assert changes.removed("/opt") and not changes.removed("/bin")


def test_only_what_hides_a_tool_is_a_shadow() -> None:
    found = {
        "/usr/local/bin/cat",
        "/usr/local/bin/python3",
        "/usr/local/bin/mine",
        "/usr/lib/libmine.so.1",
        "/usr/lib64/libc.so.6",
        "/opt/cat",
    }
    assert restore._shadows(found, KNOWN, ["/usr/local/bin", "/usr/bin"]) == {
        "/usr/local/bin/cat": "/usr/bin/cat",
        "/usr/lib64/libc.so.6": "/usr/lib/libc.so.6",
    }


@pytest.mark.parametrize(
    ("cached", "misled"),
    [
        (b"libc.so.6\0/lib/libc.so.6\0/usr/local/lib/libmine.so.1\0", False),
        (b"libc.so.6\0/home/agent/libc.so.6\0/lib/libc.so.6\0", True),
    ],
)
def test_a_loader_cache_may_grow_but_not_mislead(monkeypatch: pytest.MonkeyPatch, cached: bytes, misled: bool) -> None:
    monkeypatch.setattr(restore, "_content", lambda *_: (restore._entry("/x", restore.tarfile.REGTYPE), cached))
    assert restore._misleads("container", KNOWN) is misled


@pytest.mark.parametrize(("name", "tool"), [("cat", True), ("python3.11", True), ("pytest", False), ("catalog", False)])
def test_tools_are_known_by_name(name: str, tool: bool) -> None:
    assert restore.is_tool(name) is tool


def test_services_are_what_pid_1_started_but_the_terminal() -> None:
    assert _parse("12 (a) b (c)) S 1 2 3") == _Process(12, 1, "S", "a) b (c)")
    running = [
        _Process(1, 0, "S", "sleep"),
        _Process(5, 1, "S", "nginx"),
        _Process(6, 5, "S", "nginx"),
        _Process(7, 1, "S", "tmux: server"),
        _Process(8, 7, "S", "bash"),
        _Process(9, 0, "S", "bash"),
    ]
    assert _services(running, first=1) == [5, 6]
    assert _with_descendants(running, {7}) == {7, 8}
