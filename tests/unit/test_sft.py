"""A whole run of fine-tuning without a server: its rows, its journal, its end, its resume, its settings."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.setting import settings
from harbortrainer.sft.arguments import checked
from harbortrainer.sft.session import dry_run, run_sft
from harbortrainer.sft.trainer import SftTrainer
from harbortrainer.sft_config import SftConfig
from harbortrainer.stopping import LIMIT_STATUS, Stop
from tests.support.conversations import conversation, write_conversations, write_run
from tests.support.recorded_run import Answer, FakeServer, Recorder, fake_outside
from tests.support.small_settings import another, write_prices
from tests.support.tiers import first, spread

SERVER = ("backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one")


class Teachable(FakeServer):
    """`losses`: the held-out loss of each measurement, the last one for ever after."""

    def __init__(self, recorder: Recorder, losses: Sequence[float] = (0.5,)) -> None:
        super().__init__(recorder)
        self.losses = list(losses)

    def forward(self, datums: Sequence[tinker.Datum], loss_fn: str) -> Answer[Any]:
        answer = super().forward(datums, loss_fn)
        loss = self.losses.pop(0) if len(self.losses) > 1 else self.losses[0]
        for output in answer._value.loss_fn_outputs:
            n = len(output["logprobs"].to_numpy())
            output["logprobs"] = tinker.TensorData.from_numpy(np.full(n, -loss, np.float32))
        return answer


TEN = [conversation(f"question {n}" + "." * n, "answer", f"and {n}") for n in range(10)]  # of different lengths


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_conversations(tmp_path / "data.jsonl", TEN)


async def run(folder: Path, *arguments: str, losses: Sequence[float] = (0.5,), stop: Stop | None = None) -> Recorder:
    recorder = Recorder()
    args = checked([*SERVER, f"logs_dir={folder / 'runs'}", "run_name=r", *arguments])
    recorder.status = await run_sft(args.config, stop, fake_outside(recorder, Teachable(recorder, losses)))  # type: ignore[attr-defined]
    return recorder


def rows(folder: Path) -> list[dict[str, Any]]:
    return read_lines(folder / "runs" / "r" / "metrics.jsonl")


def steps(folder: Path) -> list[int]:
    return [record["step"] for record in read_lines(folder / "runs" / "r" / "checkpoints.jsonl")]


async def test_a_run_trains_on_every_conversation_and_says_so(tmp_path: Path, data: Path) -> None:
    done = await run(tmp_path, f"data={data}", "batch_size=4", "n_epochs=2", "save_every=2", "keep_checkpoints=0")
    assert [row["global_step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]
    datums = done.kinds("datum")
    assert len(datums) == 20 and {datum["loss_fn"] for datum in datums} == {"cross_entropy"}
    assert len({tuple(datum["tokens"]) for datum in datums}) == 10
    assert sum(sum(datum["weights"]) for datum in datums) == pytest.approx(5, abs=1e-3), "a mean over tokens each step"
    assert rows(tmp_path)[0]["sft/nll"] == 0.5 and rows(tmp_path)[0]["train/datums"] == 4
    assert steps(tmp_path) == [0, 2, 4, 5]
    ledger = read_lines(tmp_path / "runs" / "r" / "ledger.jsonl", checked=True)
    assert [r["step"] for r in ledger if r["event"] == "trained"] == [0, 1, 2, 3, 4]
    assert rows(tmp_path)[-1]["spend/tokens_trained"] == sum(len(datum["tokens"]) + 1 for datum in datums)


async def test_files_of_one_name_hold_conversations_of_their_own(tmp_path: Path) -> None:
    texts = {"a": "short", "b": "a much longer answer"}
    for folder, text in texts.items():
        (tmp_path / folder).mkdir()
        write_conversations(tmp_path / folder / "talks.jsonl", [conversation("a question", text)])
    files = [str(tmp_path / folder / "talks.jsonl") for folder in texts]
    recorder = await run(tmp_path, f"data={','.join(files)}", "batch_size=2", "max_steps=1", "loss_norm=sequence_mean")
    assert [sum(datum["weights"]) for datum in recorder.kinds("datum")] == pytest.approx([0.5, 0.5], abs=1e-3)


async def test_all_batches_are_full(tmp_path: Path, data: Path) -> None:
    recorder = await run(tmp_path, f"data={data}", "batch_size=4", "n_epochs=1")
    assert [call["datums"] for call in recorder.kinds("forward_backward")] == [4, 4, 4]
    few = await run(tmp_path / "few", f"data={data}", "batch_size=32", "n_epochs=2")
    assert [call["datums"] for call in few.kinds("forward_backward")] == [10, 10]


async def test_held_out_loss_is_measured_at_the_start_after_each_epoch_and_at_the_end(
    tmp_path: Path, data: Path
) -> None:
    given = (f"data={data}", "batch_size=4", "n_epochs=2", "eval_split=0.2")
    recorder = await run(tmp_path, *given)
    measured = [row["global_step"] for row in rows(tmp_path) if "sft/held_out_nll" in row]
    assert measured == [0, 2, 4] and {call["datums"] for call in recorder.kinds("forward")} == {2}
    trained = {tuple(datum["tokens"]) for datum in recorder.kinds("datum")}
    assert len(trained) == 8, "nothing that is held out is trained on"
    await run(tmp_path / "every", *given, "eval_every=1")
    assert [row["global_step"] for row in rows(tmp_path / "every") if "sft/held_out_nll" in row] == [0, 1, 2, 3, 4]
    assert rows(tmp_path / "every")[-1]["spend/tokens_evaluation"] > 0


MEASURED = ("eval_split=0.2", "eval_every=1")
PATIENT = ("batch_size=4", "n_epochs=5", "eval_split=0.2", "eval_every=1", "save_every=3", "keep_checkpoints=2")


async def test_it_ends_early_and_its_newest_checkpoint_is_the_best(tmp_path: Path, data: Path) -> None:
    given = (f"data={data}", *PATIENT, "patience=2")
    recorder = await run(tmp_path, *given, losses=(0.9, 0.5, 0.4, 0.6, 0.7, 0.1))
    assert [row["global_step"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4]
    assert steps(tmp_path)[-1] == 2, "the later ones are deleted"
    assert recorder.kinds("delete") and len(recorder.kinds("optim_step")) == 4
    again = await run(tmp_path, losses=(0.1,))
    assert not again.kinds("optim_step"), "a resume finds that it is complete"
    more = await run(tmp_path, "patience=4", losses=(0.3, 0.29, 0.28, 0.27, 0.26, 0.25))
    assert more.kinds("restore") == [{"kind": "restore", "step": 2}]
    assert rows(tmp_path)[-1]["global_step"] == 10 and steps(tmp_path)[-1] == 10


async def test_killed_before_it_keeps_the_best_a_resume_does(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(_: SftTrainer) -> None:
        raise RuntimeError("killed")

    given = (f"data={data}", *PATIENT, "patience=2")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(SftTrainer, "_keep_best", killed)
        await run(tmp_path, *given, losses=(0.9, 0.5, 0.4, 0.6, 0.7))
    assert steps(tmp_path)[-1] == 3, "a state that is not the best"
    again = await run(tmp_path)
    assert again.status == 0 and steps(tmp_path)[-1] == 2  # type: ignore[attr-defined]
    assert [row["global_step"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4]
    assert not (await run(tmp_path)).kinds("restore"), "now it is complete"


@pytest.mark.parametrize(
    ("after", "measured"), first(2, [(1, MEASURED), (2, ()), (1, ()), (3, ()), (2, MEASURED), (3, MEASURED)])
)
async def test_stopped_and_resumed_it_trains_each_step_once(
    tmp_path: Path, data: Path, after: int, measured: tuple[str, ...]
) -> None:
    """With held-out conversations the stop ends the measurement after the step, which the next process makes."""
    given = (f"data={data}", "batch_size=4", "n_epochs=2", "save_every=0", *measured)
    whole = await run(tmp_path / "whole", *given)
    stop = Stop()
    first = Recorder()
    args = checked([*SERVER, f"logs_dir={tmp_path / 'runs'}", "run_name=r", *given])
    server = Teachable(first)
    original, left = server.optim_step, [after]

    def optim_step(adam: tinker.AdamParams) -> Answer[Any]:
        left[0] -= 1
        if not left[0]:
            stop.request("a test", LIMIT_STATUS)
        return original(adam)

    server.optim_step = optim_step  # pyright: ignore[reportAttributeAccessIssue]
    assert await run_sft(args.config, stop, fake_outside(first, server)) == LIMIT_STATUS
    assert steps(tmp_path)[-1] == after == len(first.kinds("optim_step"))
    second = await run(tmp_path)
    kinds = ("datum", "optim_step")
    for kind in kinds:
        assert [*first.kinds(kind), *second.kinds(kind)] == whole.kinds(kind)
    same = ("global_step", "sft/nll", "sft/held_out_nll", "train/tokens", "spend/tokens")
    logged, wanted = ([[row.get(name) for name in same] for row in rows(at)] for at in (tmp_path, tmp_path / "whole"))
    assert logged == wanted
    assert not (tmp_path / "runs" / "r" / "pending_row.json").exists()


async def test_a_resume_with_other_conversations_is_refused(tmp_path: Path, data: Path) -> None:
    await run(tmp_path, f"data={data}", "max_steps=1")
    write_conversations(data, [conversation("another", "one")])
    with pytest.raises(UserError, match="its conversations have changed"):
        await run(tmp_path, "max_steps=2")


async def test_runs_of_one_command_are_not_continued_by_another(tmp_path: Path, data: Path) -> None:
    await run(tmp_path, f"data={data}", "max_steps=1")
    from harbortrainer.train import parse

    path = tmp_path / "runs" / "r"
    with pytest.raises(UserError, match=rf"it is a run of sft; continue it with python -m src.sft resume={path}"):
        parse([f"resume={path}"])
    with pytest.raises(UserError, match=r"it is a run of train; continue it with python -m src"):
        checked([f"resume={write_run(tmp_path / 'train', {})}"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "data: nothing to train on; give data=FILE.jsonl or runs=RUN_DIR"),
        (("data=x", "patience=2"), "patience=2: no conversation is held out; set eval_split"),
        (("data=x", "eval_every=2"), "eval_every=2: no conversation is held out"),
        (("data=x", "best_of_group=true"), "best_of_group=true: it chooses among trials of runs"),
        (("data=x", "min_reward=0.5"), "min_reward=0.5: it chooses among trials of runs"),
        (("data=x", "batch_size=0"), "batch_size=0: must be above 0"),
        (("data=x", "group_size=2"), "group_size: no such field"),
    ],
)
def test_a_wrong_setting_is_one_line(arguments: Sequence[str], words: str) -> None:
    with pytest.raises(UserError) as refused:
        checked([*SERVER, *arguments])
    assert words in str(refused.value)


async def test_dry_run_names_the_exact_tokens_and_their_cost(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (f"data={data}", "batch_size=4", "n_epochs=2", "eval_split=0.2")
    recorder = await run(tmp_path, *given)
    spent = sum(len(datum["tokens"]) + 1 for datum in recorder.kinds("datum"))
    capsys.readouterr()
    assert await dry_run(checked([*SERVER, *given]).config, fake_outside(Recorder())) == 0
    said = capsys.readouterr().out
    assert "8 conversations" in said and "2 held out; 4 steps of 4 conversations" in said
    assert f"trains on {spent if spent < 1000 else f'{spent / 1000:.3g} k'} tokens" in said


# field -> (value that differs from the base run's, what both runs are given besides)
SPLIT = ("eval_split=0.2",)
SPECIAL: dict[str, tuple[str, tuple[str, ...]]] = {
    "backend": ("tinker", ()),
    "skyrl_tx_url": ("http://elsewhere:1", ()),
    "tinker_base_url": ("http://cloud:1", ("backend=tinker", "skyrl_tx_url=None")),
    "model_name": ("models/two", ()),
    "init_from": ("tinker://m/weights/state-7", ()),
    "context_limit": ("60", ()),
    "data": ("OTHER", ()),
    "runs": ("RUN", ()),
    "min_reward": ("0.5", ("runs=RUN",)),
    "best_of_group": ("true", ("runs=RUN", "min_reward=0")),
    "max_per_task": ("1", ("runs=RUN",)),
    "held_out_dir": ("nowhere", ()),
    "eval_split": ("0.3", ()),
    "eval_every": ("1", SPLIT),
    "patience": ("1", (*SPLIT, "eval_every=1")),
    "n_epochs": ("3", ()),
    "max_steps": ("1", ()),
    "warmup_steps": ("3", ()),
    "max_usd": ("1e-9", ("prices=PRICES",)),
    "prices": ("nowhere.json", ()),
    "save_every": ("1", ()),
    "keep_checkpoints": ("1", ("save_every=1",)),
    "wandb_name": ("name", ("wandb_project=p",)),
    "wandb_project": ("p", ()),
    "loss_norm": ("sequence_mean", ()),
    "train_on": ("answers,observations", ("runs=RUN",)),
    "observation_loss_coef": ("0.5", ("runs=RUN", "train_on=answers,observations")),
    "run_name": ("other", ()),
    "resume": ("nowhere", ()),
    "logs_dir": ("OTHER_LOGS", ()),
}
SEEN_ELSEWHERE = {
    "outage_limit_sec": "tests/unit/test_every_setting.py: the parts are the same",
    "max_wall_sec": "the same: Stop.limit",
    "enable_thinking": "the same: ChatTemplate",
    "tool_format": "the same: ChatTemplate",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every run works at one place: two runs differ by what they do, never by their paths."""
    root = tmp_path_factory.mktemp("places")
    more = write_run(root / "run", {"x": (1.0, 0.5, 1.0), "y": (0.5, 0.5), "z": (1.0, 0.25)})
    return {
        "DATA": str(write_conversations(root / "data.jsonl", TEN)), "RUN": str(more), "AT": str(root / "at"),
        "OTHER": str(write_conversations(root / "other.jsonl", [conversation("p", "a")] * 4)),
        "OTHER_LOGS": str(root / "at" / "elsewhere"), "PRICES": write_prices(root / "prices.json"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def bases() -> dict[tuple[str, ...], list[str]]:
    """Events of the base runs, by what they are given besides."""
    return {}


async def events(places: dict[str, str], *arguments: str) -> list[str]:
    words = ["data=DATA", "batch_size=4", "n_epochs=2", *arguments]
    for place, path in places.items():
        words = [word.replace(f"={place}", f"={path}") if word.endswith(f"={place}") else word for word in words]
    at = Path(places["AT"])
    try:
        recorder = await run(at, *words)
        return [*sorted(recorder.events), *sorted(str(path.relative_to(at)) for path in at.glob("*/*"))]
    except UserError as error:
        return [str(error)]
    finally:
        shutil.rmtree(at, ignore_errors=True)


@pytest.mark.parametrize("name", spread([name for name in settings(SftConfig) if name not in SEEN_ELSEWHERE], 10))
async def test_a_setting_has_an_effect_or_is_refused(
    places: dict[str, str], bases: dict[tuple[str, ...], list[str]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-key")
    value, besides = SPECIAL.get(name) or (another(SftConfig, name), ())
    if besides not in bases:
        bases[besides] = await events(places, *besides)
    changed = await events(places, *besides, f"{name}={value}")
    assert changed != bases[besides], f"{name}={value} changes nothing that leaves this process"
