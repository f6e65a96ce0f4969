"""`python -m src.train` with input that is wrong before any server is asked: one plain line, exit 2, nothing spent."""

from pathlib import Path

from tests.support.command_runs import command, refused


def test_docker_that_does_not_run(tmp_path: Path):
    told = refused(command("http://127.0.0.1:9", tmp_path), DOCKER_HOST=f"unix://{tmp_path}/docker.sock")
    assert "Docker" in told
    assert list(tmp_path.iterdir()) == []


def test_server_that_does_not_answer(docker_ready: str, tmp_path: Path):
    assert "start_skyrl_tx.sh" in refused(command("http://127.0.0.1:9", tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_tasks_dir_without_a_task(tmp_path: Path):
    assert "tasks_dir" in refused(command("http://127.0.0.1:9", tmp_path, f"tasks_dir={tmp_path}"))


def test_eval_task_that_is_not_there(tmp_path: Path):
    told = refused(command("http://127.0.0.1:9", tmp_path, "eval_tasks=create-66"))
    assert "create-66" in told and "create-6" in told
