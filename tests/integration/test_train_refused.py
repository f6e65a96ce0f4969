"""`python -m src.train` with input that is wrong before any server is asked: one plain line, exit 2, nothing spent."""

from pathlib import Path

import pytest
import tinker

from tests.conftest import MODEL
from tests.support.command_runs import command, refused, run
from tests.support.failing_server import OF_OLDER_SDKS, failing_server


def test_docker_that_does_not_run(tmp_path: Path):
    told = refused(command("http://127.0.0.1:9", tmp_path), DOCKER_HOST=f"unix://{tmp_path}/docker.sock")
    assert "Docker" in told
    assert list(tmp_path.iterdir()) == []


def test_server_that_does_not_answer(docker_ready: str, tmp_path: Path):
    assert "start_skyrl_tx.sh" in refused(command("http://127.0.0.1:9", tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_server_of_older_sdks(docker_ready: str, tmp_path: Path):
    """In a process of its own: the SDK repeats its requests when the run has ended."""
    served = {"/api/v1/get_server_capabilities": {"supported_models": [{"model_name": str(MODEL)}]}}
    with failing_server(OF_OLDER_SDKS | served) as url:
        done = run(command(url, tmp_path / "runs"), XDG_CACHE_HOME=str(tmp_path))
    left, reason = done.stderr.splitlines()
    assert left.endswith("adapter m1 stays on the server: it answers 404 to POST unload_model")
    assert f"{url}: answers 500 to POST /api/v1/forward_backward" in reason and "'Another-RL' 0.1" in reason
    assert done.returncode == 2 and f"no Tinker API for the SDK tinker {tinker.__version__}" in reason
    assert not (tmp_path / "runs").exists()


def test_tasks_dir_without_a_task(tmp_path: Path):
    assert "tasks_dir" in refused(command("http://127.0.0.1:9", tmp_path, f"tasks_dir={tmp_path}"))


def test_eval_task_that_is_not_there(tmp_path: Path):
    told = refused(command("http://127.0.0.1:9", tmp_path, "eval_tasks=create-66"))
    assert "create-66" in told and "create-6" in told
