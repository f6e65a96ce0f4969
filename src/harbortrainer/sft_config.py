"""The flat configuration of a run of supervised fine-tuning."""

from typing import Literal

import chz

from harbortrainer.config import FIXED, LENGTH, NEXT_STEP, TASKS, RunSettings
from harbortrainer.setting import ABOVE_0, BELOW_1, FROM_0, Check, field


@chz.chz
class SftConfig(RunSettings):
    """A run of supervised fine-tuning."""

    # -- conversations
    data: tuple[str, ...] = field(
        (),
        "conversations: files of JSON lines or parquet with messages or conversations, harbor:JOBDIR for trials of "
        "Harbor's jobs: a,b; empty = none",
        resume=TASKS,
    )
    runs: tuple[str, ...] = field(
        (), "runs and evaluations whose graded trials become conversations: DIR,DIR; empty = none", resume=TASKS
    )
    min_reward: float = field(1.0, "least reward of a trial that is taken from runs or a job of Harbor's", resume=FIXED)
    best_of_group: bool = field(False, "true = only the trials with the best reward of their group", resume=FIXED)
    held_out_dir: str | None = field(
        None,
        "tasks that are held out, named as in tasks_dir: their conversations are left out, and those of data that "
        "share 13 words in a row with one; None = not checked",
        resume=TASKS,
    )
    max_per_task: int = field(
        0, "most conversations of one task, drawn by seed; 0 = no limit", check=FROM_0, resume=FIXED
    )

    # -- evaluation
    eval_split: float = field(
        0.0, "share of the tasks whose conversations are held out, drawn by seed; 0 = none", check=BELOW_1, resume=FIXED
    )
    eval_every: int = field(
        0,
        "steps between measurements of the held-out loss; 0 = at start, after each epoch and at the end",
        check=FROM_0,
    )
    patience: int = field(
        0, "measurements without a lower held-out loss after which the run ends; 0 = never", check=FROM_0, resume=LENGTH
    )

    # -- batch
    batch_size: int = field(32, "conversations in a step", check=ABOVE_0, resume=FIXED)

    # -- learning
    loss_norm: Literal["token_mean", "sequence_mean"] = field(
        "token_mean", "token_mean, or sequence_mean (mean of the conversations' means)", resume=NEXT_STEP
    )
    train_on: tuple[str, ...] = field(
        ("answers",),
        "answers, or answers,observations: what the environment answered is a target too",
        check=Check(
            lambda given: given in (("answers",), ("answers", "observations")), "answers or answers,observations"
        ),
        resume=FIXED,
    )
    observation_loss_coef: float = field(
        1.0,
        "factor of the mean over conversations of their observations' mean loss, with train_on=answers,observations",
        check=ABOVE_0,
        resume=NEXT_STEP,
    )
