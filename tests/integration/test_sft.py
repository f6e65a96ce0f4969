"""`python -m src.sft` on a real server: the loss of a reference, kill -9 and resume, and GRPO from its weights."""

import asyncio
import contextlib
import io
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tinker

from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.sft.conversation import of_messages
from scripts.quickstart import answers
from scripts.quickstart.cases import make_case
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.make_tasks import reserved_words
from scripts.quickstart.words import Words
from tests.conftest import MODEL, ROOT
from tests.support.conversations import write_conversations
from tests.support.served_run import weights

SETTINGS = ("lora_rank=8", "batch_size=16", "max_steps=4", "save_every=1", "keep_checkpoints=0", "learning_rate=3e-3")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of the quickstart's tasks in which the author is careful and the first command is the right one."""
    from scripts.quickstart.transcripts import act  # with transformers: not in each process of the tests

    rng, taken, records = random.Random(1), reserved_words(), []
    while len(records) < 48:
        case = make_case(rng.choice(KINDS), Words(rng, taken), rng)
        exchanges = act(case, rng)
        if answers.CAREFUL in exchanges[0].answered and json.dumps(case.right)[1:-1] in exchanges[0].answered:
            pairs = [(("user", e.said), ("assistant", e.answered)) for e in exchanges]
            messages = [{"role": role, "content": text} for pair in pairs for role, text in pair]
            records.append({"messages": messages, "task": case.right})
    return write_conversations(tmp_path_factory.mktemp("data") / "careful.jsonl", records)


def command(url: str, folder: Path, name: str, *more: str) -> list[str]:
    return [
        "sft", "backend=skyrl-tx", f"skyrl_tx_url={url}", f"model_name={MODEL}", f"logs_dir={folder}",
        f"run_name={name}", "context_limit=4096", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def taught(server_url: str, tiny_model_dir: Path, data: Path) -> Path:
    """A whole run, with conversations held out."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(command(server_url, data.parent, "taught", f"data={data}", "eval_split=0.25", *SETTINGS)) == 0
    assert "held-out loss" in said.getvalue()
    assert "done; train on it with: python -m src.train init_from=" in said.getvalue()
    return data.parent / "taught"


def last_state(run: Path) -> str:
    return read_lines(run / "checkpoints.jsonl")[-1]["path"]


def test_the_loss_falls_on_conversations_that_it_has_not_seen(taught: Path):
    measured = {row["global_step"]: row["sft/held_out_nll"] for row in read_lines(taught / "metrics.jsonl")
                if "sft/held_out_nll" in row}  # fmt: skip
    assert measured[4] < measured[0] - 0.005
    assert (taught / "report.html").is_file()


def test_the_loss_is_that_of_the_sdk_on_the_same_tokens(server_url: str, taught: Path, data: Path):
    """The cookbook's sl_loop reports - sum(logprobs * weights) / sum(weights)."""
    template, records = ChatTemplate.load(str(MODEL), False), [json.loads(line) for line in data.open()]
    trained = next(r for r in read_lines(taught / "ledger.jsonl") if r["event"] == "trained")["conversations"]
    service = tinker.ServiceClient(base_url=server_url, api_key="tml-none")
    client = service.create_lora_training_client(str(MODEL), 8, seed=0, train_unembed=False).result()
    datums, masks = [], []
    for name in trained:
        messages = records[int(name.rpartition(":")[2]) - 1]["messages"]
        (one,) = of_messages(messages, template, name=name, task=None, source="").sequences_D
        masks.append(one.mask_T[1:])
        inputs = {
            "target_tokens": tinker.TensorData.from_numpy(one.tokens_T[1:].astype(np.int64)),
            "weights": tinker.TensorData.from_numpy(one.mask_T[1:].astype(np.float32)),
        }
        model_input = tinker.ModelInput.from_ints(one.tokens_T[:-1].tolist())
        datums.append(tinker.Datum(model_input=model_input, loss_fn_inputs=inputs))
    outputs = client.forward(datums, "cross_entropy").result().loss_fn_outputs
    logprobs = np.concatenate([o["logprobs"].to_numpy()[mask] for o, mask in zip(outputs, masks, strict=True)])
    service.close("success").result()
    first = next(row for row in read_lines(taught / "metrics.jsonl") if "sft/nll" in row)
    assert first["sft/nll"] == pytest.approx(-logprobs.mean(), abs=1e-5)


@pytest.mark.nightly
def test_killed_and_resumed_it_ends_with_the_same_weights(server_url: str, taught: Path, data: Path):
    given = (f"data={data}", "eval_split=0.25", *SETTINGS)
    run = data.parent / "killed"
    words = [sys.executable, "-m", "src.sft", *command(server_url, data.parent, run.name, *given)[1:]]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 1800
    while len(read_lines(run / "checkpoints.jsonl")) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert main(command(server_url, data.parent, run.name)) == 0
    unbroken, resumed = (asyncio.run(weights(server_url, last_state(folder))) for folder in (taught, run))
    assert resumed == pytest.approx(unbroken, abs=1e-5, rel=1e-5)
    rows = read_lines(run / "metrics.jsonl")
    assert [row["global_step"] for row in rows] == [0, 1, 2, 3, 4]
    digests: dict[int, set[str]] = {}
    for record in read_lines(run / "ledger.jsonl"):
        if record["event"] == "trained":
            digests.setdefault(record["step"], set()).add(record["digest"])
    assert all(len(one) == 1 for one in digests.values()), "a step that is made again has the same datums"
