"""How much work is left: steps, evaluations and the trials of both."""

from dataclasses import dataclass

from src.budget.account import Account
from src.budget.past import read_records
from src.config import Config
from src.course import task_order
from src.plan import Plan
from src.rollout.order import TaskOrder
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


def scope_of(plan: Plan) -> Scope:
    """Of a new run all of it, of a resumed one what is left."""
    config = plan.config
    done, waiting, rows = _done(plan)
    order = task_order(config, plan.train)
    places = sum(len(order.batch(step)) for step in range(done, plan.total_steps)) * config.group_size
    evaluations = 0
    if plan.held_out:
        evaluations = int(done == 0 and rows == 0)
        evaluations += sum(_due(config, order, step) for step in range(done, plan.total_steps))
    return Scope(
        done,
        plan.total_steps - done,
        max(0, places - waiting),
        evaluations,
        evaluations * len(plan.held_out) * config.eval_group_size,
    )


def _done(plan: Plan) -> tuple[int, int, int]:
    """Steps that were trained on, graded trials that wait for their batch, rows of metrics."""
    if plan.earlier is None:
        return 0, 0, 0
    records = read_records(plan.earlier)
    account = Account()
    for record in records:
        account.count(record)
    steps = 1 + max((record["step"] for record in records if record["event"] == "trained"), default=-1)
    return min(steps, plan.total_steps), account.waiting, len(read_lines(plan.earlier.metrics))


def _due(config: Config, order: TaskOrder, step: int) -> bool:
    """Whether the 0-based step is followed by an evaluation."""
    last = step + 1 == order.total_steps
    return last or ((step + 1) % config.eval_every == 0 if config.eval_every else order.ends_epoch(step))
