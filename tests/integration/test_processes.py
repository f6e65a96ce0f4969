"""Commands and imports in processes of their own: what a reader that leaves, a silent hub and no wandb project do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.fakes import CHATML, byte_tokenizer, chat_template
from tests.support.tiers import first


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    first(
        2,
        [
            ("src.report --help", "1"),
            ("src.tasks list datasets/quickstart", ""),
            ("src.train --help", ""),
            ("src.tasks list --json datasets/quickstart", "1"),
        ],
    ),
)
def test_a_reader_that_has_gone_ends_it_without_a_traceback(command: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", *command.split()]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(words, cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("output", "status", "said"),
    first(
        2,
        [
            (">&- 2>&- <&-", 0, ""),
            ("> /dev/full", 2, "error: standard output: cannot be written: No space"),
            (">&-", 0, ""),
        ],
    ),
)
def test_a_closed_or_full_output_is_no_traceback(output: str, status: int, said: str) -> None:
    words = f"exec {sys.executable} -m src.tasks list datasets/quickstart {output}"
    ended = subprocess.run(["sh", "-c", words], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == status and ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == bool(said)


LOAD = """
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.errors import UserError
try:
    print(ChatTemplate.load("a/model", False).continuation("x"))
except UserError as error:
    print(error)
"""


def test_a_hub_that_does_not_answer_is_one_line_or_the_copy_in_the_cache(tmp_path: Path) -> None:
    def load() -> list[str]:
        away = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-c", LOAD]
        output = subprocess.PIPE
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | away, stdout=output, stderr=subprocess.STDOUT, text=True, check=True
        )
        return done.stdout.splitlines()

    (line,) = load()
    assert line.startswith("model_name: no tokenizer for 'a/model' (the model hub does not answer, and the cache does")
    cached = tmp_path / "hub" / "models--a--model"
    snapshot = cached / "snapshots" / ("0" * 40)
    byte_tokenizer(CHATML).save_pretrained(snapshot)
    (snapshot / "config.json").write_text('{"model_type": "qwen3"}')
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    assert load() == [str(chat_template(CHATML).continuation("x"))]


def test_without_a_project_wandb_is_not_even_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; import harbortrainer.training.session;"
        "from harbortrainer.watch.wandb_log import start_wandb;"
        "from harbortrainer.run.directory import RunDirectory;"
        f"assert start_wandb(RunDirectory(Path({str(tmp_path)!r})), None, None, {{}}, print) is None;"
        "sys.exit('wandb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
