"""init_from: which state a value names, what is refused, and what a run and its resumes do with it."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.backend.policy import SavedState
from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.errors import UserError
from harbortrainer.planning import dry_run
from harbortrainer.run.checkpoints import PolicyIdentity
from harbortrainer.train import parse
from harbortrainer.training.start import find_state
from tests.support.recorded_run import Recorder, fake_outside
from tests.support.resumed import Again, again, of

__all__ = ["again"]  # a fixture

WANTED = PolicyIdentity("m", 8, "chat_template:1", "off")
STEPS = (0, 3, 7)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An earlier run with three checkpoints."""
    run = tmp_path / "source"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"backend": "skyrl-tx"}))
    for step in STEPS:
        append_line(run / "checkpoints.jsonl", asdict(WANTED.checkpoint(step, f"tinker://a/weights/{step}")))
    return run


def found(value: Any, wanted: PolicyIdentity = WANTED) -> SavedState:
    return find_state("init_from", str(value), wanted, "skyrl-tx")


def test_a_run_names_its_newest_state_and_a_step_that_one(source: Path) -> None:
    newest, third = found(source), found(f"{source}@3")
    assert (newest.path, newest.step, newest.run) == ("tinker://a/weights/7", 7, str(source))
    assert (third.path, third.step) == ("tinker://a/weights/3", 3)
    assert third.given == f"init_from={source}@3"


def test_a_folder_whose_name_ends_like_a_step_is_a_folder(source: Path) -> None:
    twin = source.rename(source.with_name("source@9"))
    assert found(twin).step == 7 and found(f"{twin}@3").step == 3


def test_a_line_that_the_source_is_writing_is_not_read_and_not_cut(source: Path) -> None:
    file = source / "checkpoints.jsonl"
    torn = file.read_bytes() + b'{"step": 9, "pa'
    file.write_bytes(torn)
    assert found(source).step == 7 and file.read_bytes() == torn


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_name": "n"}, r"model_name=n: init_from=\S+ was trained from m; give model_name=m"),
        ({"lora_rank": 32}, r"lora_rank=32: init_from=\S+ has rank 8; give lora_rank=8"),
        ({"thinking": "on"}, r"enable_thinking: init_from=\S+ was trained with thinking off, and this run has on"),
        ({"renderer": "chat_template:2"}, r"model_name=m: .* another chat template \(chat_template:1, now chat_templ"),
    ],
)
def test_a_state_of_another_policy_is_refused_in_one_line(source: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        found(source, replace(WANTED, **changes))
    assert "\n" not in str(refusal.value)


def test_what_names_no_state_is_refused_in_one_line(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"init_from=\S+source@5: no such checkpoint; there are 0, 3, 7$"):
        found(f"{source}@5")
    with pytest.raises(UserError, match=r"not the path of a training state .*checkpoints\.jsonl"):
        found("tinker://a/sampler_weights/7")
    with pytest.raises(UserError, match="no run directory"):
        found(tmp_path / "nowhere")
    (source / "checkpoints.jsonl").unlink()
    with pytest.raises(UserError, match=r"init_from=\S+source: no such checkpoint; none was saved$"):
        found(source)


ADAPTER = {"peft_type": "LORA", "r": 8, "lora_alpha": 32.0, "base_model_name_or_path": "hub/m", "bias": "none"}


def adapter(folder: Path, **changes: Any) -> Path:
    """The folder of an adapter; what is in its tensors is not read before a server gets it."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER | changes))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


def test_an_adapters_folder_has_a_path_that_depends_on_its_files_alone(tmp_path: Path) -> None:
    one, same = found(adapter(tmp_path / "a")), found(adapter(tmp_path / "b"))
    assert (one.folder, one.path) == (str(tmp_path / "a"), same.path)
    assert one.path.startswith("tinker://adapter-") and one.path.endswith("/weights/uploaded")
    assert found(adapter(tmp_path / "b", lora_alpha=16)).path != one.path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r": 4}, r"lora_rank=8: init_from=\S+ has rank 4; give lora_rank=4"),
        ({"base_model_name_or_path": "hub/n"}, r"model_name=m: init_from=\S+ is an adapter of hub/n; give that model"),
        ({"use_dora": True}, "only plain LoRA can be trained on, and this has .*use_dora=True"),
        ({"rank_pattern": {"q_proj": 2}}, "only plain LoRA .*rank_pattern="),
        ({"r": None}, "r=None, lora_alpha=32.0 in adapter_config.json: must be numbers above 0"),
    ],
)
def test_another_adapter_than_the_run_trains_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        found(adapter(tmp_path / "a", **changes))
    assert "\n" not in str(refusal.value)


def test_an_adapter_is_refused_where_no_server_takes_it(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    with pytest.raises(UserError, match="Tinker's API takes no adapter; give RUN_DIR or a tinker:// path, or train"):
        find_state("init_from", str(folder), WANTED, "tinker")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"adapter_model.safetensors is missing"):
        found(folder)


def test_an_exported_adapter_says_its_chat_template(tmp_path: Path) -> None:
    (adapter(tmp_path / "a") / "harbortrainer.json").write_text('{"renderer": "chat_template:2", "thinking": "off"}')
    with pytest.raises(UserError, match="was trained with another chat template"):
        found(tmp_path / "a")


def test_a_state_on_the_other_backend_is_refused(source: Path) -> None:
    with pytest.raises(UserError, match="its weights are on backend=skyrl-tx; set backend=skyrl-tx or give other"):
        find_state("init_from", str(source), WANTED, "tinker")


async def trained_source(again: Again) -> Path:
    """A run of one epoch, two steps, moved away so that another one can have its name."""
    await again.process("save_every=1")
    return again.folder.rename(again.folder.with_name("source"))


async def test_a_run_loads_the_state_in_place_of_the_seed_and_saves_it_before_it_trains(again: Again) -> None:
    source = await trained_source(again)
    path = read_lines(source / "checkpoints.jsonl")[1]["path"]
    events = await again.process(f"init_from={source}@1")
    taken = {"kind": "start from", "path": path}  # by the run, and by the sampler of kl/start
    assert of("start from", events) == [taken, taken] and not of("create", events)
    effective = json.loads((again.folder / "effective.json").read_text())
    assert effective["start"] == {
        "given": f"init_from={source}@1", "path": path, "run": str(source), "step": 1, "optimizer": False,
        "folder": None,
    }  # fmt: skip
    assert json.loads((again.folder / "config.json").read_text())["init_from"] == f"{source}@1"
    assert [record["step"] for record in read_lines(again.folder / "checkpoints.jsonl")] == [0, 2]


async def test_a_resume_keeps_the_recorded_state_whatever_the_source_has_now(again: Again) -> None:
    source = await trained_source(again)
    path = read_lines(source / "checkpoints.jsonl")[-1]["path"]
    await again.process(f"init_from={source}", "max_trials=11")
    shutil.rmtree(source)
    (again.folder / "checkpoints.jsonl").unlink()  # as after the server has lost every state
    events = await again.process("max_trials=0")
    taken = {"kind": "start from", "path": path}
    assert of("start from", events) == [taken, taken] and not of("create", events)
    assert again.steps() == [1, 2]
    started = [r["trial"] for r in read_lines(again.folder / "ledger.jsonl") if r["event"] == "started"]
    assert len(started) == len(set(started)), "no trial was run again"


@pytest.mark.parametrize("argument", ["init_from=tinker://other/weights/x", "init_from=None"])
async def test_a_resume_from_another_state_is_refused(again: Again, argument: str) -> None:
    await again.process("init_from=tinker://one/weights/x", "max_trials=11")
    (refusal,) = of("refused", await again.process(argument))
    assert "was started with init_from=tinker://one/weights/x; leave it out or start a new run" in refusal["words"]


async def test_a_setting_that_came_after_a_runs_start_had_its_default(again: Again) -> None:
    await again.process("max_trials=11")
    file = again.folder / "config.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in saved.items() if not name.startswith("init_")}))
    (refusal,) = of("refused", await again.process("init_from=tinker://one/weights/x"))
    assert "was started with init_from=None" in refusal["words"]


async def test_held_out_tasks_that_the_weights_have_seen_are_refused_over_two_runs(again: Again) -> None:
    source = await trained_source(again)
    await again.process(f"init_from={source}", "tasks_include=create-1,create-2")
    second = again.folder.rename(again.folder.with_name("second"))
    (refusal,) = of(
        "refused", await again.process(f"init_from={second}", "eval_tasks=count-1", "tasks_exclude=count-2")
    )
    assert f"init_from={second}: " in refusal["words"] and "count-1" in refusal["words"]
    assert not again.folder.exists()


async def test_the_plan_names_the_state(again: Again, capsys: pytest.CaptureFixture[str]) -> None:
    source = await trained_source(again)
    base = ("backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", f"tasks_dir={again.tasks}")
    config = parse([*base, "batch_size=2", "group_size=4", f"init_from={source}@1",
                    "kl_penalty_coef=1", f"kl_reference={source}@2"]).config  # fmt: skip
    assert await dry_run(config, outside=fake_outside(Recorder())) == 0
    path = read_lines(source / "checkpoints.jsonl")[1]["path"]
    line = f"starts from {path} (init_from={source}@1, the state after step 1), with fresh Adam moments"
    out = capsys.readouterr().out
    assert line in out and f"(kl_reference={source}@2, the state after step 2)" in out
