"""How well runs know the terminal's answers, before their first step and after their last, on the same trials for all.

python -m scripts.gpu.known RUN ...

The trials: those of the first run's first evaluation. Nats: mean of -log p over all tokens that the terminal answered
in them. The runs' server has to run, and to have both states (keep_checkpoints=0).
"""

import asyncio
import sys
from pathlib import Path

from harbortrainer.backend.policy import SavedState
from harbortrainer.backend.reference import Reference
from harbortrainer.config import Config
from harbortrainer.learning.observations import observed_nats, observing
from harbortrainer.run.checkpoints import CheckpointLog
from harbortrainer.run.config_changes import ConfigHistory
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.trajectories import read_batch
from harbortrainer.training.outside import Outside


class Kept:
    """The samplers of this measurement, which nothing keeps."""

    def sampler_of(self, state: str) -> None: ...
    def note_model(self, model_id: str) -> None: ...
    def note_sampler(self, state: str, sampler: str) -> None: ...
    def drop_sampler(self, state: str) -> None: ...


async def nats(run: RunDirectory, first: RunDirectory) -> tuple[float, float]:
    """Before the first step and after the last, on the trials of the first evaluation of `first`."""
    trials = read_batch(first.trajectories("eval", 0)).values()
    sequences_D = [sequence for trial in trials for sequence in observing(trial)]
    (_, config), *_ = ConfigHistory(run, Config).configs()
    backend = await Outside().connect(config)
    found: list[float] = []
    for record in (CheckpointLog(run.checkpoints).records[i] for i in (0, -1)):
        state = SavedState(f"{run.path}@{record.step}", record.path)
        reference = Reference(backend, config.model_name, Kept(), state)
        found.append(observed_nats(sequences_D, await reference.logprobs(sequences_D))["observation/nats"])
    return found[0], found[1]


def main() -> None:
    runs = [RunDirectory(Path(given)) for given in sys.argv[1:]]
    for run in runs:
        before, after = asyncio.run(nats(run, runs[0]))
        print(f"{run.name}: {before:.3f} -> {after:.3f} nats a token, {100 * (after / before - 1):+.1f} %")


if __name__ == "__main__":
    main()
