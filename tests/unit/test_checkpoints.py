"""Which states stay on the server, how much room they take there, and what is deleted of earlier models."""

import errno
from pathlib import Path
from typing import Any, Never

import pytest

from harbortrainer.durable.disk import disk_fault
from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.errors import DiskFault, UserError
from harbortrainer.run.checkpoints import CheckpointLog, Keep, PolicyIdentity
from harbortrainer.training.outage import delete_orphans

POLICY = PolicyIdentity("m", 8, "chat_template:1", "off")


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (Keep(0), [0, 1, 2, 3, 4, 5, 6]),
        (Keep(1), [6]),
        (Keep(1, best=1), [2, 6]),
        (Keep(1, best=2), [2, 4, 6]),
        (Keep(1, best=9), [1, 2, 4, 6]),
    ],
)
def test_what_is_kept(keep: Keep, kept: list[int]) -> None:
    scores = {1: 0.1, 2: 0.5, 4: 0.5, 9: 1.0}
    assert sorted(keep.choose(range(7), scores)) == kept


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (file := tmp_path / "checkpoints.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"checkpoints.jsonl is damaged .*; restore it or start a new run"):
        CheckpointLog(file)


@pytest.mark.parametrize("keep", [Keep(0), Keep(1), Keep(3, best=2), Keep(1, best=3)])
@pytest.mark.parametrize("save_every", [0, 1, 3])
async def test_never_more_states_than_are_kept_and_a_new_one(tmp_path: Path, keep: Keep, save_every: int) -> None:
    log, total, on_server = CheckpointLog(tmp_path / "checkpoints.jsonl", keep), 20, set()
    most = 0

    async def delete(path: str) -> None:
        on_server.remove(path)

    for step in range(total + 1):
        append_line(tmp_path / "metrics.jsonl", {"global_step": step, "eval/reward_mean": (7 * step % 5) / 5})
        if step in (0, total) or (save_every and step % save_every == 0):
            path = f"tinker://s:train:0/weights/{step}"
            on_server.add(path)
            most = max(most, len(on_server))
            await log.add(POLICY.checkpoint(step, path), delete)
            assert log.paths == on_server and log.records[-1].step == step
    assert not keep.last or most <= keep.last + keep.best + 1
    again = CheckpointLog(tmp_path / "checkpoints.jsonl", keep)
    assert again.records == log.records


async def test_a_save_that_meets_a_full_disk_is_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block of a file may take a line where the disk takes no new file: the run counted as complete."""

    async def delete(path: str) -> None:
        raise AssertionError("it is the only state on record")

    def full(path: Path) -> Never:
        raise disk_fault(errno.ENOSPC, path)

    log = CheckpointLog(file := tmp_path / "checkpoints.jsonl", Keep(1))
    await log.add(POLICY.checkpoint(1, "tinker://s:train:0/weights/1"), delete)
    monkeypatch.setattr("harbortrainer.durable.jsonl.replace_text", lambda path, _: full(path))
    with pytest.raises(DiskFault):
        await log.add(POLICY.checkpoint(2, "tinker://s:train:0/weights/2"), delete)
    assert [one.step for one in CheckpointLog(file, Keep(1)).records] == [1]


class Server:
    """Of PolicyTrainer, what `delete_orphans` uses."""

    def __init__(self, model_id: str, weights: dict[str, set[str]], silent: str = "") -> None:
        self.model_id, self.weights, self.silent, self.saved = model_id, weights, silent, self

    async def delete_others(self, model_id: str, keep: set[str]) -> int | None:
        if model_id == self.silent:
            return None
        before = len(self.weights[model_id])
        self.weights[model_id] &= keep
        return before - len(self.weights[model_id])


async def test_what_a_killed_process_left_on_the_server_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    async def never(path: str) -> None:
        raise AssertionError(path)

    log = CheckpointLog(tmp_path / "checkpoints.jsonl")
    first: Any = Server("a", {"a": {"tinker://a/weights/1", "tinker://a/weights/2", "tinker://a/sampler_weights/2"}})
    await delete_orphans(first, log)
    assert len(first.weights["a"]) == 3, "the model in training is left alone"
    await log.add(POLICY.checkpoint(1, "tinker://a/weights/1"), never)
    log.note_model("b")
    resumed = CheckpointLog(tmp_path / "checkpoints.jsonl")
    second: Any = Server("c", first.weights | {"b": {"tinker://b/sampler_weights/0"}, "c": {"tinker://c/weights/3"}})
    await delete_orphans(second, resumed)
    assert second.weights == {"a": {"tinker://a/weights/1"}, "b": set(), "c": {"tinker://c/weights/3"}}
    assert resumed.models() == ["a", "c"], "b has nothing left"
    third: Any = Server("d", second.weights, silent="c")
    await delete_orphans(third, resumed)
    assert resumed.models() == ["a", "c", "d"], "c could not be asked: again the next time"
    assert [record["model"] for record in read_lines(tmp_path / "models.jsonl")] == ["a", "c", "d"]
