import threading
from pathlib import Path

import pytest

from harbortrainer.docker.builds import build_with_cli, buildkit_feature
from harbortrainer.docker.images import content_digest
from harbortrainer.stopping import in_daemon_thread


@pytest.mark.parametrize(
    ("dockerfile", "needs_buildkit"),
    [
        ("FROM debian\nRUN cat <file >other\nCOPY a b\n", False),
        ("# a comment\nFROM debian\nRUN echo $((1 << 2))\n", False),
        ("# syntax=docker/dockerfile:1\nFROM debian\n", True),
        ("FROM debian\nRUN --mount=type=cache,target=/c true\n", True),
        ("FROM debian\nRUN <<EOF\necho hi\nEOF\n", True),
        ("FROM debian\nCOPY <<-'EOT' /x\nhi\nEOT\n", True),
        ("FROM debian\nCOPY --chmod=755 a b\n", True),
        ("FROM debian\nCOPY --chown=a:b --from=x a b\n", False),
    ],
)
def test_buildkit_syntax_is_recognised(dockerfile: str, needs_buildkit: bool) -> None:
    assert bool(buildkit_feature(dockerfile)) is needs_buildkit


def test_digest_follows_content_mode_and_name(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM a\n")
    digests = [content_digest(tmp_path)]
    file.write_text("FROM bb\n")
    digests.append(content_digest(tmp_path))
    file.chmod(0o755)
    digests.append(content_digest(tmp_path))
    (tmp_path / "data").mkdir()
    digests.append(content_digest(tmp_path))
    (tmp_path / "data" / "link").symlink_to("nowhere")
    digests.append(content_digest(tmp_path))
    assert len(set(digests)) == len(digests)
    assert content_digest(tmp_path) == digests[-1]


def test_digest_is_of_the_content_not_of_the_place(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text("FROM a\n")
    assert content_digest(tmp_path / "one") == content_digest(tmp_path / "two")


def test_digest_ignores_what_the_build_ignores(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a\n")
    (tmp_path / ".dockerignore").write_text("*.log\n")
    before = content_digest(tmp_path)
    (tmp_path / "noise.log").write_text("x")
    assert content_digest(tmp_path) == before


def test_a_silent_build_by_the_cli_ends_when_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = tmp_path / "docker"
    cli.write_text("#!/bin/sh\necho begun\nexec sleep 600\n")
    cli.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    stop = threading.Event()
    events = build_with_cli(tmp_path, "t", {}, "heredoc", stop)
    assert next(events) == {"stream": "begun\n"}
    stop.set()
    assert [set(event) for event in events] == [{"error"}]


async def test_a_thread_hands_on_results_and_errors() -> None:
    def fail() -> None:
        raise KeyError("no such thing")

    assert await in_daemon_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError):
        await in_daemon_thread(fail)
