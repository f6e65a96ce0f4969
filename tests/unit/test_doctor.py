"""The doctor's command line; what it measures is tried on real servers in tests/integration."""

import pytest

from src.doctor import ParityArgs, ProbeArgs, main, parse


def test_arguments_take_the_fields_types():
    args = parse(["backend=skyrl-tx", "--skyrl_tx_url=http://a:1/?x=1", "refresh=false"], ProbeArgs)
    assert args == ProbeArgs(backend="skyrl-tx", skyrl_tx_url="http://a:1/?x=1", refresh=False)
    assert parse(["A=x", "steps=9"], ParityArgs).steps == 9


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["bakend=tinker"], "bakend: no such field; did you mean backend?"),
        (["backend=cloud"], "backend=cloud: must be one of tinker, skyrl-tx"),
        (["refresh=maybe"], "refresh=maybe: must be true or false"),
        (["backend"], "backend: must be backend=VALUE"),
        (["parity", "A=http://a:1"], "missing: B"),
        (["parity", "A=http://a:1", "B=http://b:1", "steps=0"], "steps=0: must be a whole number above 0"),
        (["parity", "A=a:1", "B=http://b:1"], "skyrl_tx_url=a:1: must start with http://"),
    ],
)
def test_a_mistake_is_one_line(argv, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {words}") and error.count("\n") == 1


def test_a_server_that_is_not_there_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["backend=skyrl-tx", "skyrl_tx_url=http://127.0.0.1:9"]) == 2
    assert "connection refused" in capsys.readouterr().err


def test_help_names_both_commands(capsys):
    assert main(["--help"]) == 0
    assert "parity A=URL B=URL" in capsys.readouterr().out
