import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harbortrainer.backend.health import proxy_of
from harbortrainer.cli.arguments import read_arguments
from harbortrainer.cli.main import LOOPBACK, load_environment, main, run_command
from harbortrainer.config import FIELDS
from harbortrainer.durable.files import read_json, write_json
from harbortrainer.durable.jsonl import append_line
from harbortrainer.errors import UserError
from harbortrainer.evaluation.arguments import ExportArgs
from harbortrainer.model_file import ModelFile, model_of
from harbortrainer.report.arguments import ReportArgs
from harbortrainer.run.config_changes import to_json
from harbortrainer.run.directory import RunDirectory
from harbortrainer.train import parse
from harbortrainer.watch.display import Display
from tests.conftest import ROOT

COUNTS = ("eval/tasks", "eval/trials", "eval/trials_ungraded")

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
        ("group_size=many", ["group_size=many", "a whole number"]),
        ("backend=skyrl", ["backend=skyrl", "tinker", "skyrl-tx"]),
        ("group_size", ["group_size", "NAME=VALUE"]),
        ("--quiet", ["--quiet: ", "nor an option"]),
        ("learning_rate=fast", ["learning_rate=fast", "must be a number"]),
        ("clip_thresholds=0.5", ["clip_thresholds=0.5", "two numbers"]),
        ("environment_kwargs.a.b=1", ["environment_kwargs.a.b=1: ", "give environment_kwargs.NAME=VALUE"]),
        ("--agent_kwargs.a.b.c=1", ["agent_kwargs.a.b.c=1: ", "give agent_kwargs.NAME=VALUE"]),
        ("environment_kwargs.=1", ["environment_kwargs.=1: ", "give environment_kwargs.NAME=VALUE"]),
        ("outcome_policy=mask", ["outcome_policy=mask", "give outcome_policy.NAME=VALUE"]),
        ("quality=1", ["quality", "see --help"]),
        ("enable_summarize=perhaps", ["enable_summarize=perhaps", "true or false"]),
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
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name}=" in text for name in FIELDS) and "trials of each task" in text


def test_a_run_of_an_earlier_version_is_continued(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its settings that were removed are named in a line if they had an effect."""
    run = RunDirectory(tmp_path)
    former = {"keep_best": 5, "eval_overlap": False, "eval_temperature": None, "judge_weight": 0.1, "judge_kwargs": {}}
    write_json(run.config, to_json(parse(BASE)) | former)
    for name in ("outage_limit_sec", "json"):
        saved = read_json(run.config)
        write_json(run.config, {field: value for field, value in saved.items() if field != name})
    resumed = parse([f"resume={tmp_path}"])
    assert resumed.outage_limit_sec == 1800.0
    (line,) = caplog.messages
    assert line.startswith(f"{run.config}: keep_best=5: without effect")


def test_user_and_judge_of_an_earlier_version_are_those_of_their_files_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory(tmp_path)
    saved = {name: value for name, value in to_json(parse(BASE)).items() if name not in ("user", "judge")}
    judge = {"judge_model": "j", "judge_url": "http://j/v1", "judge_weight": 0.5, "taxonomy": None, "judge_kwargs": {}}
    distil = {"user_model": "base", "reward_weight": 0.0, "kl_penalty_coef": 1.0, "user_kwargs": {}}
    write_json(run.config, saved | judge | distil)
    change = {"judge_weight": {"before": 0.5, "now": 0.25}}
    append_line(run.config_changes, {"time": 1.0, "from_step": 2, "changes": change})
    resumed = parse([f"resume={tmp_path}"])
    assert resumed.user == "base" and resumed.advantage == "none" and caplog.messages == []
    assert model_of("judge", resumed.judge) == ModelFile("j", "http://j/v1", weight=0.25)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give a command; one of train, sft, evaluate, export, serve, doctor, tasks"),
        (["trian"], "trian: no such command; one of train"),
        (["tasks"], "give a command; one of check, build, allow, list, get, split, close, measure; see --help"),
        (["tasks", "lst", "."], "lst: no such command; one of check"),
        (["evaluate", "shwo"], "shwo: no such command; one of show, export"),
        (["evaluate", "show"], "missing: dir (give DIR)"),
        (["evaluate", "export", ".", "last"], "step=last: must be a whole number"),
        (["report"], "missing: run_dir (give RUN_DIR)"),
        (["report", "a", "panels=-1"], "panels=-1: must be 0 or more"),
        (["doctor", "server", "here:1"], "skyrl_tx_url=here:1: must start with http://"),
        (["doctor", "server", "http://h:99999"], "skyrl_tx_url=http://h:99999: Port out of range 0-65535"),
        (["doctor", "server", "http://h:0"], "skyrl_tx_url=http://h:0: port 0 takes no connection"),
        (["doctor", "server", "http://h:8000x"], "skyrl_tx_url=http://h:8000x: Port could not be cast to integer"),
        (["doctor", "server", "http://"], "skyrl_tx_url=http://: has no host"),
        (["train", *BASE, f"run_name={'x' * 300}"], f"run_name={'x' * 300}: must be the name of one folder"),
        (["tasks", "check", ".", "n_parallel=0"], "n_parallel=0: must be above 0"),
    ],
)
def test_a_wrong_command_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {told}") and error.count("\n") == 1, error


def test_words_without_a_name_and_paths_that_look_like_fields() -> None:
    args = read_arguments(ReportArgs, ["runs/lr=1,b", "panels=3", "two"], ("run_dir",))
    assert (args.run_dir, args.panels) == (("runs/lr=1,b", "two"), 3)
    named = read_arguments(ExportArgs, ["runs/lr=1,b", "3"], ("dir", "step"))
    assert (named.dir, named.step) == ("runs/lr=1,b", 3)


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


@pytest.mark.parametrize(("given", "then"), [("", LOOPBACK), ("lan", f"lan,{LOOPBACK}"), ("*", "*")])
def test_a_proxy_is_not_asked_for_this_machine(given, then, tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", given)
    monkeypatch.setenv("NO_PROXY", given)
    for _ in range(2):
        load_environment(tmp_path)
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == then
    assert proxy_of("http://localhost:8000") == proxy_of("http://127.0.0.1:8000") == ""
    assert proxy_of("http://10.1.2.3:8000") == ("" if given == "*" else "http://127.0.0.1:9")


def test_a_letter_that_the_terminal_has_not_is_replaced() -> None:
    written = io.BytesIO()

    async def command() -> int:
        Display().evaluation(3, {"eval/reward_mean": 0.5, "eval/reward_stderr": 0.1} | dict.fromkeys(COUNTS, 2.0))
        return 0

    with contextlib.redirect_stdout(io.TextIOWrapper(written, encoding="ascii")):
        assert run_command(command) == 0
    assert b"reward 0.500 ? 0.100 (2 tasks, 2 trials)" in written.getvalue()


def test_a_command_reads_the_environment_file_first_and_tells_mistakes_line_by_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMMAND_LINE_TEST", "")
    monkeypatch.delenv("COMMAND_LINE_TEST")
    (tmp_path / ".env").write_text("COMMAND_LINE_TEST=read\n")

    async def command() -> int:
        raise UserError(f"one {os.environ['COMMAND_LINE_TEST']}\ntwo\x1b[2J")

    assert run_command(command) == 2
    assert capsys.readouterr().err == "error: one read\nerror: two\N{REPLACEMENT CHARACTER}[2J\n"


def test_ctrl_c_while_modules_are_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "chz.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-m", "src.train"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_a_locale_that_is_not_utf_8_changes_no_name_and_no_file(tmp_path: Path) -> None:
    """Names beside ASCII were tracebacks, and what tasks say was read by the locale's code."""
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-m", "src.report", str(tmp_path / "größe")]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, check=False)
    assert done.returncode == 2 and f"{tmp_path}/größe: no run directory" in done.stderr.decode()
