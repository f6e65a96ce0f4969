"""Adds tmux to an image that lacks it, once for each image. Terminus-2 would install it in every trial. Blocking."""

import hashlib
import io
import json
import threading
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from docker.errors import APIError

from harbortrainer.docker.box.one_off import one_off
from harbortrainer.docker.daemon import engine, engine_until
from harbortrainer.docker.images.builds import REPOSITORY, ImageError, follow, is_here
from harbortrainer.docker.images.origins import fetch, share
from harbortrainer.docker.keeping.ownership import image_labels
from harbortrainer.durable.files import cache_folder, make_folder, replace_text

INSTALL_SEC = 240  # as Harbor's limit in a trial
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Lists and archives of apt go to a folder that is removed: the image keeps those that it has, and no others.
_INSTALL = """set -e
export DEBIAN_FRONTEND=noninteractive
has() { command -v "$1" > /dev/null 2>&1; }
if has apt-get; then
  d=$(mktemp -d) && chmod 755 "$d" && mkdir -p "$d/lists/partial" "$d/cache/archives/partial"
  o="-o Dir::State::lists=$d/lists -o Dir::Cache=$d/cache"
  apt-get $o update || true
  apt-get $o install -y tmux
  rm -rf "$d"
elif has dnf; then dnf install -y tmux
elif has microdnf; then microdnf install -y tmux
elif has yum; then yum install -y tmux
elif has apk; then apk add --no-cache tmux
elif has pacman; then pacman -Sy --noconfirm tmux
elif has zypper; then zypper --non-interactive install tmux
else echo no package manager; exit 1
fi
tmux -V"""
_BOUNDED = f'if command -v timeout > /dev/null 2>&1; then set -- timeout {INSTALL_SEC}; fi; exec "$@" /bin/sh -c "$0"'


def tmux_reference(image_id: str) -> str:
    """Return the name of the image with tmux that is, or would be, made of the image with this ID."""
    return f"{REPOSITORY}:tmux-{_digest(image_id)[:12]}"


def with_tmux(base: str, run_id: str, stop: threading.Event) -> tuple[str, bool]:
    """Return the image that has tmux, `base` itself or one made of it, and whether it was made now.

    The new image differs from `base` in nothing else. Raises ImageError when tmux cannot be installed, DockerException,
    DiskFault.
    """
    found = engine().inspect_image(base)
    config = found["Config"] or {}
    name = tmux_reference(found["Id"])
    if is_here(name):
        return name, False
    known = cache_folder("with-tmux") / found["Id"].removeprefix("sha256:")  # a look takes 0.2 s
    if known.is_file():
        return base, False
    if _has_tmux(base, config, run_id):
        make_folder(known.parent)
        replace_text(known, "")
        return base, False
    if config.get("OnBuild"):
        raise ImageError(f"cannot add tmux to {base}: its ONBUILD instructions would run")
    tag = f"tmux-{_digest(found['Id'])}"
    if fetch(name, tag, stop):
        return name, True
    text, marks = _dockerfile(base, config.get("User") or ""), image_labels(_digest(found["Id"]), run_id)
    try:
        with engine_until(stop) as client:
            events = client.build(
                fileobj=io.BytesIO(text.encode()), tag=name, labels=marks, rm=True, forcerm=True, decode=True
            )
            follow(events, "", stop)
    except (APIError, ImageError) as error:
        raise ImageError(f"cannot add tmux to {base}: {_last_line(str(error))}") from error
    share(name, tag, made=False)
    return name, True


def _last_line(log: str) -> str:
    """What the script or Docker printed last; Docker's error before it repeats the script."""
    lines = [line.strip() for line in log.splitlines()]
    return [line for line in lines if line and not line.startswith("Removing intermediate container")][-1]


def _has_tmux(image: str, config: Mapping[str, Any], run_id: str) -> bool:
    """Look at the files of a container that is not started."""
    variables = dict(one.partition("=")[::2] for one in config.get("Env") or ())
    folders = [one for one in (variables.get("PATH") or _DEFAULT_PATH).split(":") if one.startswith("/")]
    client = engine()
    with one_off(image, run_id) as made:
        url = f"{client.base_url}/containers/{made}/archive"
        answers = (client.head(url, params={"path": f"{folder}/tmux"}).status_code for folder in folders)
        return any(status == HTTPStatus.OK for status in answers)


def _dockerfile(base: str, user: str) -> str:
    """Instructions that leave USER, WORKDIR, ENTRYPOINT, CMD, ENV and HEALTHCHECK as they are in `base`."""
    run = f"RUN {json.dumps(['/bin/sh', '-c', _BOUNDED, _INSTALL])}"
    lines = [f"FROM {base}", "USER root", run, f"USER {user}"] if user else [f"FROM {base}", run]
    return "\n".join([*lines, ""])


def _digest(image_id: str) -> str:
    return hashlib.sha256(f"{image_id}\0{_dockerfile('', '')}".encode()).hexdigest()
