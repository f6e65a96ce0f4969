import asyncio
import os
import signal
import subprocess
import sys

import pytest

from src.command_line import load_environment, parse, run_command, to_json
from src.errors import UserError
from src.run.directory import RunDirectory, write_json
from tests.conftest import ROOT

BASE = ["model_name=Qwen/Qwen3-4B", "tasks_dir=./datasets/terminal-bench-2"]
FIRST_LINE = (
    "backend=skyrl-tx skyrl_tx_url=http://localhost:8000 model_name=Qwen/Qwen3-4B "
    "tasks_dir=./datasets/terminal-bench-2 "
    "learning_rate=2e-4 batch_size=2 group_size=16 n_parallel_envs=16 max_tokens=2048 temperature=0.7 "
    "context_limit=128000 proactive_summarization_threshold=8000 enable_summarize=true n_epochs=2 num_substeps=4 "
    "remove_constant_reward_groups=true normalize_advantages_by_std=true loss_fn=ppo environment_type=docker "
    "wandb_project=harbor-training wandb_name=qwen3-skyrl-tx"
)
SECOND_LINE = (
    "backend=skyrl-tx skyrl_tx_url=http://localhost:8000 model_name=Qwen/Qwen3-4B "
    "tasks_dir=./datasets/terminal-bench-2 "
    "batch_size=1 group_size=2 n_parallel_envs=2 n_epochs=1 environment_type=docker"
)


def test_users_run_lines_parse_as_written():
    first = parse(FIRST_LINE.split())
    assert (first.backend, first.loss_fn, first.num_substeps, first.context_limit) == ("skyrl-tx", "ppo", 4, 128000)
    assert first.enable_summarize and first.remove_constant_reward_groups and first.normalize_advantages_by_std
    assert first.learning_rate == 2e-4 and first.temperature == 0.7
    second = parse(SECOND_LINE.split())
    assert (second.batch_size, second.group_size, second.n_parallel_envs, second.backend) == (1, 2, 2, "skyrl-tx")


def test_the_last_of_two_values_wins_so_that_a_script_can_be_overridden():
    assert parse([*BASE, "group_size=4", "group_size=9"]).group_size == 9


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("grup_size=2", ["grup_size", "group_size"]),
        ("learning_rte=1", ["learning_rte", "learning_rate"]),
        ("group_size=many", ["group_size=many", "int"]),
        ("backend=skyrl", ["backend=skyrl", "tinker", "skyrl-tx"]),
        ("loss_fn=dro", ["loss_fn=dro", "ppo", "cispo"]),
        ("group_size", ["group_size", "key=value"]),
        ("enable_summarize=perhaps", ["enable_summarize=perhaps", "bool"]),
    ],
)
def test_wrong_argument_is_one_line_that_names_it(argument: str, words: list[str]):
    with pytest.raises(UserError) as error:
        parse([*BASE, argument])
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_missing_required_fields_are_named():
    with pytest.raises(UserError, match=r"tasks_dir"):
        parse(["model_name=x"])


def test_lists_and_environment_settings():
    config = parse([*BASE, "eval_tasks=a,b", "environment_kwargs.region=eu"])
    assert config.eval_tasks == ("a", "b")
    assert to_json(config)["environment_kwargs"] == {"region": "eu"}


def test_help_names_every_field_with_its_doc(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        parse(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert "proactive_summarization_threshold" in text and "rollouts a task" in text


def test_resume_takes_the_saved_values_and_refuses_another_model(tmp_path):
    run = RunDirectory(tmp_path)
    write_json(run.config, to_json(parse([*BASE, "group_size=5", "eval_tasks=a,b"])))
    resumed = parse([f"resume={tmp_path}", "n_epochs=7"])
    assert (resumed.group_size, resumed.n_epochs, resumed.eval_tasks) == (5, 7, ("a", "b"))
    with pytest.raises(UserError, match=r"model_name=other.*Qwen/Qwen3-4B"):
        parse([f"resume={tmp_path}", "model_name=other"])


def test_resume_of_no_run_directory(tmp_path):
    with pytest.raises(UserError, match=r"resume=.*config\.json"):
        parse([f"resume={tmp_path}"])


def test_env_files_fill_in_what_the_shell_leaves_open(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("HT_A=env\nHT_B=env\nHT_C=env\n")
    (tmp_path / ".env.skyrl-tx").write_text("HT_A=own\nHT_B=own\n")
    for name in ("HT_A", "HT_B", "HT_C"):
        monkeypatch.setenv(name, "shell")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HT_A", "shell")
    load_environment(tmp_path)
    assert [os.environ[name] for name in ("HT_A", "HT_B", "HT_C")] == ["shell", "own", "env"]


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT"])
def test_a_signal_stops_a_command_after_its_clean_up(signal_name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    cleaned = []

    async def command() -> int:
        os.kill(os.getpid(), signal.Signals[signal_name])
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)
        return 0

    assert run_command(command) == 130
    assert cleaned == [True] and capsys.readouterr().err == "stopped\n"


def test_a_command_reads_the_environment_file_first_and_tells_mistakes_line_by_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMMAND_LINE_TEST", "")
    monkeypatch.delenv("COMMAND_LINE_TEST")
    (tmp_path / ".env").write_text("COMMAND_LINE_TEST=read\n")

    async def command() -> int:
        raise UserError(f"one {os.environ['COMMAND_LINE_TEST']}\ntwo")

    assert run_command(command) == 2
    assert capsys.readouterr().err == "error: one read\nerror: two\n"


def test_output_that_nobody_reads_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "src.train", "--help"]
    try:
        ended = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command",
    [
        "src.report --help", "src.train --help", "src.doctor --help",
        "src.evaluate --help", "src.replay --help", "src.tasks list datasets/quickstart",
        "src.tasks show datasets/quickstart/count-1",
    ],
)  # fmt: skip
def test_a_reader_that_has_gone_ends_it_without_a_traceback(command: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", *command.split()]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(words, cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")
