"""The doctor's command line; what it measures is tried on real servers in tests/integration."""

import pytest

from harbortrainer.cli.main import main


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["bakend=tinker"], "bakend: no such field; did you mean backend?"),
        (["backend"], "backend: no such command; one of server, docker, hosts, clean"),
        (["clean", "remov=true"], "remov: no such field; did you mean remove?"),
        (["clean", "images_older_than_days=0"], "images_older_than_days=0.0: must be 1 or more, or None"),
        (["docker", "tasks_dir=no/such"], "tasks_dir: no/such is not a folder"),
    ],
)
def test_a_mistake_is_one_line(argv, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {words}") and error.count("\n") == 1


@pytest.mark.parametrize("command", ["clean", "docker"])
def test_a_daemon_that_is_not_there_is_one_line(command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert main(["doctor", command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: Docker is not running") and error.count("\n") == 1


def test_a_server_that_is_not_there_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "backend=skyrl-tx", "skyrl_tx_url=http://127.0.0.1:9"]) == 2
    assert "connection refused" in capsys.readouterr().err
