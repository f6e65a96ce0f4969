"""A whole run on a real server, with trials that need no Docker: `python -m tests.support.served_run ARGUMENTS`."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tinker
from harbor.models.trial.config import TrialConfig

from harbortrainer.backend.policy import PolicyTrainer
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.policy.tinker_llm import live_llm
from harbortrainer.train import checked
from harbortrainer.training.outside import Outside
from harbortrainer.training.session import run_training
from harbortrainer.venues.harbor.venue import HarborVenue
from tests.conftest import MODEL
from tests.support.recorded_run import FakeHost, FakeTrial, Recorder

TASKS = "datasets/quickstart"
SMALL = (
    f"backend=skyrl-tx model_name={MODEL} tasks_dir={TASKS} tasks_include=count-1,count-2,create-1,create-2 "
    "lora_rank=8 batch_size=2 group_size=4 max_tokens=16 context_limit=2048 learning_rate=3e-3 save_every=1 "
    "keep_checkpoints=0"
).split()
HANGS = "SERVED_RUN_HANGS"  # in the environment: no trial ends
STILL = tinker.AdamParams(learning_rate=0.0)


class Trial(FakeTrial):
    """One turn of the live policy on a prompt that it does not know, so that its answers differ; then a grade."""

    async def _act(self) -> Any:
        name = self._config.agent.kwargs["llm_kwargs"]["name"]
        llm = live_llm(name)
        if HANGS in os.environ:
            await asyncio.Event().wait()
        name = Path(str(self._config.task.path)).name  # the same tokens in every checkout
        answer = await llm.call(f"{TASKS}/{name} 7 zebra qx !! ** ..")
        llm.stop_reason = "done"
        graded = SimpleNamespace(rewards={"reward": float(len(set(answer.content)) % 3) / 2})
        nothing = dict.fromkeys(("exception_info", "step_results", "environment_setup", "agent_setup", "verifier"))
        return SimpleNamespace(**nothing, agent_execution=None, verifier_result=graded, finished_at=None)


def arguments(url: str, logs_dir: Path, name: str, *more: str) -> list[str]:
    return [*SMALL, f"skyrl_tx_url={url}", f"logs_dir={logs_dir}", f"run_name={name}", *more]


def served_outside() -> Outside:
    """The real server and tokenizer; Docker, wandb and pages are stand-ins."""
    recorder = Recorder()

    async def new_trial(config: TrialConfig) -> Any:
        return Trial(config, recorder)

    return Outside(venues={"harbor": HarborVenue(FakeHost(recorder), new_trial)}, leave_report=lambda _: "")


async def served_run(words: Sequence[str]) -> Path:
    """The directory of the run, which has ended."""
    args = checked(words)
    assert await run_training(args.config, outside=served_outside()) == 0
    return Path(args.logs_dir) / str(args.run_name)


async def weights(url: str, path: str) -> np.ndarray:
    """What identifies saved weights: their logprobs of fixed sequences, in a forward pass of the trainer."""
    config = checked(arguments(url, Path("-"), "-")).config
    backend = await Outside().connect(config)
    trainer = await PolicyTrainer.restore(backend, config, path)
    try:
        result = await trainer.update(_fixed(), loss_fn="importance_sampling", loss_fn_config=None, adam=STILL)
    finally:
        await trainer.close()
        await backend.close(done=True)
    return np.concatenate(result.logprobs_D)


def _fixed() -> list[TrainingSequence]:
    mask = np.arange(24) >= 12
    nothing = np.zeros(24, np.float32)
    return [
        TrainingSequence(f"t{i}", np.arange(5 + i, 29 + i, dtype=np.int32), mask, nothing, nothing) for i in (0, 40)
    ]


if __name__ == "__main__":
    asyncio.run(served_run(sys.argv[1:]))
