"""How much work is left: steps, evaluations and the trials of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from src.course import evaluation_due, task_order
from src.plan import Plan
from src.run.jsonl import read_lines


@dataclass(frozen=True, slots=True)
class Scope:
    """`first_step`: 0-based. Trials are places: one that fails is run again."""

    first_step: int
    steps: int
    training_places: int
    evaluations: int
    evaluation_places: int

    @property
    def places(self) -> int:
        return self.training_places + self.evaluation_places


def scope_of(plan: Plan, records: Sequence[Mapping[str, Any]], waiting: int) -> Scope:
    """Of a new run all of it, of a resumed one what is left.

    `records`: of its ledger so far; `waiting`: graded trials of a batch that is not trained on yet.
    """
    config, order = plan.config, task_order(plan.config, plan.train)
    trained = 1 + max((record["step"] for record in records if record["event"] == "trained"), default=-1)
    done = min(trained, plan.total_steps)
    places = sum(len(order.batch(step)) for step in range(done, plan.total_steps)) * config.group_size
    evaluations = 0
    if plan.held_out:
        rows = read_lines(plan.earlier.metrics) if plan.earlier is not None else []
        last = order.total_steps - 1
        evaluations = int(done == 0 and not rows)
        evaluations += sum(
            step == last or evaluation_due(config.eval_every, order, step) for step in range(done, plan.total_steps)
        )
    return Scope(
        done,
        plan.total_steps - done,
        max(0, places - waiting),
        evaluations,
        evaluations * len(plan.held_out) * config.eval_group_size,
    )
