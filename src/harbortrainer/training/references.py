"""What a run compares its policy with: the reference of its KL penalty, and its start."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.policy import SavedState
from harbortrainer.backend.reference import Reference
from harbortrainer.config import Config
from harbortrainer.errors import WeightsGone
from harbortrainer.learning.datums import (
    TrainingSequence,
    apply_kl_penalty,
    count_tokens,
    mean_log_ratio,
    some_sequences,
)
from harbortrainer.run.checkpoints import CheckpointLog
from harbortrainer.training.start import BASE, START

log = logging.getLogger("harbortrainer")
DRIFT_SEQUENCES = 8  # scored a step for kl/start


class References:
    """The reference of each value that kl_reference has had in this run, and the start.

    The same weights are one object, and are scored once.
    """

    def __init__(self, start: Reference | None, penalties: Mapping[str, Reference]) -> None:
        """`start`: None = `kl/start` is not measured."""
        self._start = start
        self._penalties = penalties

    async def compare(
        self, step: int, sequences_D: Sequence[TrainingSequence], config: Config
    ) -> tuple[Sequence[TrainingSequence], dict[str, float], Counter[str]]:
        """Return the sequences with the KL penalty in their advantages, metrics in nats a token, and the tokens that
        references scored, by trial. Raises BackendError, ServerLost.
        """
        metrics: dict[str, float] = {}
        scored: Counter[str] = Counter()
        penalty = self._penalties[config.kl_reference] if config.kl_penalty_coef else None
        penalised = sequences_D
        if penalty is not None:
            logprobs_D = await penalty.logprobs(sequences_D)
            penalised, mean = apply_kl_penalty(
                sequences_D, logprobs_D, config.kl_penalty_coef, centred=config.by_rewards
            )
            scored += count_tokens(sequences_D)
            if config.kl_reference != START:
                metrics["kl/base" if config.kl_reference == BASE else "kl/reference"] = mean
            if penalty is self._start:
                metrics["kl/start"] = mean
        if self._start is not None and "kl/start" not in metrics:
            some_D = some_sequences(sequences_D, DRIFT_SEQUENCES, config.seed, step)
            try:
                metrics["kl/start"] = mean_log_ratio(some_D, await self._start.logprobs(some_D))
                scored += count_tokens(some_D)
            except WeightsGone as error:
                self._give_up(error)
        return penalised, metrics, scored

    async def ready(self) -> None:
        """Make the clients. Raises UserError, WeightsGone for a reference of the penalty, BackendError."""
        for penalty in self._penalties.values():
            await penalty.ready()
        try:
            if self._start is not None:
                await self._start.ready()
        except WeightsGone as error:
            self._give_up(error)

    def _give_up(self, error: WeightsGone) -> None:
        log.warning("kl/start: %s; the drift from the start is not measured any more", error)
        self._start = None

    async def delete(self) -> None:
        """Delete what was saved for comparing; of a run that is complete."""
        for reference in {*self._penalties.values(), *([self._start] if self._start else [])}:
            await reference.delete()


async def open_references(
    backend: Backend,
    checkpoints: CheckpointLog,
    configs: Iterable[Config],
    start: SavedState | None,
    teachers: Mapping[str, SavedState],
) -> References:
    """Return the references of a run whose settings are or were `configs`, ready to score. `teachers`: by kl_reference.

    Call it before the run's adapter is made: a saved state takes an adapter slot for a moment. Raises UserError,
    WeightsGone, BackendError.
    """

    configs = list(configs)

    def reference(state: SavedState | None) -> Reference:
        return Reference(backend, configs[-1].model_name, checkpoints, state)

    base = reference(None)
    known = {name: reference(state) for name, state in teachers.items()}
    known |= {BASE: base, START: base if start is None else reference(start)}
    penalties = {config.kl_reference: known[config.kl_reference] for config in configs if config.kl_penalty_coef}
    references = References(known[START] if backend.contract.prompt_logprobs else None, penalties)
    await references.ready()
    return references
