import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harbortrainer.docker.images.builds import ImageError, build_with_cli, buildkit_feature, follow
from harbortrainer.docker.images.image import Image, content_digest, image_notes
from harbortrainer.docker.images.inventory import missing_note
from harbortrainer.docker.images.tmux_image import _last_line


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


def test_digest_ignores_what_the_build_ignores(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a\n")
    (tmp_path / ".dockerignore").write_text("*.log\n")
    before = content_digest(tmp_path)
    (tmp_path / "noise.log").write_text("x")
    assert content_digest(tmp_path) == before


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of the docker CLI."""

    def put(script: str) -> None:
        file = tmp_path / "docker"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    return put


def test_a_silent_build_by_the_cli_ends_when_it_is_stopped(tmp_path: Path, cli: Callable[[str], None]) -> None:
    cli('echo begun\n[ "$1" = build ] && exec sleep 600\nexit 0')
    stop = threading.Event()
    events = build_with_cli(tmp_path, "t", {}, "heredoc", stop)
    assert next(events) == {"stream": "begun\n"}
    stop.set()
    assert [set(event) for event in events] == [{"error"}]


def test_without_buildx_compose_builds(tmp_path: Path, cli: Callable[[str], None]) -> None:
    cli('[ "$1" = compose ] || exit 1\n[ $2 = version ] && echo 2 || { echo "$@"; cat; }')
    stop = threading.Event()
    events = build_with_cli(tmp_path, "t", {"a": "b$c"}, "heredoc", stop)
    words, given = [event["stream"] for event in events]
    stop.set()
    build = {"context": str(tmp_path), "dockerfile": f"{tmp_path}/Dockerfile", "labels": {"a": "b$$c"}}
    assert words.endswith(" --file - build\n")
    assert json.loads(given) == {"services": {"main": {"image": "t", "build": build}}}


def test_remarks_on_images_have_a_kind_and_name_the_task() -> None:
    plain = Image("r", "", "/", (), False)
    ((kind, line),) = image_notes("a", [plain, replace(plain, instead="no such image")])
    assert kind == "built" and line.startswith("task a: its image is built from its Dockerfile, not pulled: no such im")
    ((kind, line),) = image_notes("a", [replace(plain, no_tmux="no package manager")])
    assert kind == "no tmux" and line.endswith("no package manager")


def test_missing_images_are_counted_and_named() -> None:
    missing = dict.fromkeys("abcd", "to pull") | {"e": "", "f": "to build"}
    assert missing_note(missing) == ["tasks whose images are missing here: 4 to pull (a, b, c, …), 1 to build (f)"]
    assert missing_note({"e": ""}) == missing_note({}) == []


def test_why_tmux_is_not_added_is_the_last_line_of_the_script() -> None:
    said = [" ---> Running in 5\n", "\x1b[91mE: no tmux\n\x1b[0m", "Removing intermediate container 5\n"]
    events = [*({"stream": line} for line in said), {"error": "'/bin/sh' returned 1"}]
    with pytest.raises(ImageError) as fault:
        follow(iter(events), "", threading.Event())
    assert _last_line(str(fault.value)) == fault.value.last_lines.rpartition(" | ")[2] == "E: no tmux"
