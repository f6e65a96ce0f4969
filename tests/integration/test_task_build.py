"""`python -m src.tasks build` with a real daemon."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import image as images
from tests.support.docker_parts import BASE, write_task

pytestmark = pytest.mark.usefixtures("docker_ready")


def build(*words: str) -> tuple[int, list[str]]:
    """Exit status, and lines of standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "src.tasks", "build", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_images_are_made_once_and_what_fails_is_named_with_the_builders_words(tmp_path: Path) -> None:
    good = [write_task(tmp_path / name, dockerfile=f"{BASE}RUN echo {tmp_path} {name}\n") for name in ("one", "two")]
    write_task(tmp_path / "broken", dockerfile=f"{BASE}RUN echo no rule to make it && false\n")
    report = tmp_path / "report.json"
    words = str(tmp_path), "n_parallel=2", f"json={report}"
    try:
        status, (why, counts) = build(*words, "tasks_exclude=two")
        assert status == 1 and why.startswith("broken: image: cannot build ") and why.endswith("no rule to make it")
        assert counts.startswith("2 tasks: images of 1 made, of 0 here before, of 1 not to be made")
        write_task(tmp_path / "composed")
        (tmp_path / "composed/environment/docker-compose.yaml").write_text("services: {main: {}}\n")
        status, lines = build(*words)
        assert status == 1 and "4 tasks: images of 1 made, of 1 here before, of 1 not to be made" in lines[-1]
        assert ", of 1 left to their trials, by docker compose; " in lines[-1]
        assert [row["name"] for row in json.loads(report.read_text()) if row["why"]] == ["broken"]
        assert all(images.is_here(images.task_reference(task / "environment")) for task in good)
    finally:
        for task in good:
            engine().remove_image(images.task_reference(task / "environment"), force=True)
