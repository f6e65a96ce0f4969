"""What every run that trains an adapter opens: its folder with the journals, and its limits."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harbortrainer.budget.budget import Budget, Pricing
from harbortrainer.config import RunSettings
from harbortrainer.errors import ServerLost, UserError
from harbortrainer.run.checkpoints import BEST, CheckpointLog, Keep, PolicyIdentity, check_identity
from harbortrainer.run.directory import RunDirectory, held, run_ids
from harbortrainer.run.ledger import Ledger
from harbortrainer.stopping import Stop
from harbortrainer.watch.display import Display


@dataclass(frozen=True, slots=True)
class Workspace:
    """The run directory with its journals, and the controls of the run."""

    run: RunDirectory
    run_id: str  # in labels
    is_new: bool
    ledger: Ledger
    budget: Budget
    checkpoints: CheckpointLog
    display: Display
    stop: Stop


def open_workspace(
    config: RunSettings,
    pricing: Pricing,
    earlier: RunDirectory | None,
    new: Callable[[], RunDirectory],
    total_steps: int,
    trained: PolicyIdentity,
    *,
    stack: contextlib.AsyncExitStack,
    display: Display,
    stop: Stop,
    keep: Keep | None = None,
) -> Workspace:
    """Open the run's folder, or create it by `new` and lock it until the stack closes; and open its journals.

    `keep`: None = as the settings say. Raises UserError: no folder, or its saved states are of another policy.
    """
    run = earlier
    if run is None:
        run = new()
        stack.enter_context(held(run))
    display.keep_log(run, total_steps)
    display.say(f"{'run directory' if earlier is None else 'continues'} {run.path}")
    stop.resume_hint = f"finished work is saved, resume with: {run.resume}"
    budget = Budget(config, pricing)
    ledger = Ledger(run.ledger, budget.count)
    budget.on_cap(stop.request_soon)
    display.spent = budget.brief
    stop.limit_spending(budget.over)
    keep = keep or Keep(config.keep_checkpoints, BEST)
    checkpoints = CheckpointLog(run.checkpoints, keep)
    if (latest := checkpoints.latest()) is not None:
        check_identity(latest, trained, f"resume={run.path}", "start a new run")
    return Workspace(
        run,
        run_ids(run).run_id,
        earlier is None,
        ledger,
        budget=budget,
        checkpoints=checkpoints,
        display=display,
        stop=stop,
    )


@contextlib.contextmanager
def undone_if_refused(workspace: Workspace) -> Iterator[None]:
    """A new run that is refused within the block leaves no folder; one whose server is lost can be resumed."""
    try:
        yield
    except UserError as error:
        if isinstance(error, ServerLost):
            workspace.display.say(f"{workspace.run.path} is kept; continue with: {workspace.run.resume}")
        elif workspace.is_new:
            shutil.rmtree(workspace.run.path)
        raise
