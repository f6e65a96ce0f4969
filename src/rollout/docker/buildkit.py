"""Builds whose Dockerfile needs BuildKit: the Engine API cannot do them alone, so the docker CLI does."""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

_FEATURES = {
    "# syntax=": re.compile(r"\A(?:\s*#[^\n]*\n)*\s*#\s*syntax\s*=", re.IGNORECASE),
    "RUN --mount/--network/--security": re.compile(r"^\s*RUN\s+(?:--\S+\s+)*--(?:mount|network|security)", re.M | re.I),
    "COPY/ADD --link/--chmod/--parents/--exclude/--checksum": re.compile(
        r"^\s*(?:COPY|ADD)\s+(?:--\S+\s+)*--(?:link|chmod|parents|exclude|checksum|keep-git-dir)", re.M | re.I
    ),
    "heredoc": re.compile(r"^\s*(?:RUN|COPY|ADD)\s+(?:[^\n]*\s)?<<-?[\"']?[A-Za-z_]\w*[\"']?", re.M | re.I),
}


def buildkit_feature(dockerfile: str) -> str | None:
    """The first BuildKit-only construct of a Dockerfile's text; None = the classic builder can do it."""
    return next((name for name, pattern in _FEATURES.items() if pattern.search(dockerfile)), None)


def build_with_cli(
    context: Path, reference: str, labels: Mapping[str, str], feature: str, stop: threading.Event
) -> Iterator[dict[str, str]]:
    """Build with `docker build`; yields events in the Engine API's form ("stream" or "error").

    Ended by `stop`, which has to be set some time.
    """
    if shutil.which("docker") is None:
        yield {"error": f"the Dockerfile uses {feature}; install the docker CLI with its buildx plugin"}
        return
    command = ["docker", "build", "--progress=plain", "--tag", reference]
    command += [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    with subprocess.Popen(
        [*command, str(context)],
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        threading.Thread(target=_kill_after, args=(stop, process), name="docker-build-stop", daemon=True).start()
        for line in process.stdout:
            yield {"stream": line}
        code = process.wait()
    if code != 0:
        yield {"error": f"docker build (the Dockerfile uses {feature}) ended with code {code}"}


def _kill_after(stop: threading.Event, process: subprocess.Popen[str]) -> None:
    stop.wait()
    process.kill()  # nothing happens when it has ended
