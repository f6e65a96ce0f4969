# pyright: strict
"""A whole GRPO loop on containers, in one file: copy it, and change what you like.

    SKYRL_TX_URL=http://localhost:8000 python examples/loop.py backend=skyrl-tx model_name=models/quickstart \
        tasks_dir=datasets/quickstart eval_split=0.1 max_steps=12 batch_size=8 group_size=6 lora_rank=8 \
        learning_rate=5e-3 max_turns=4 max_tokens=32 context_limit=2048

The parts are those of `harbortrainer train`: trials in containers, tokens as they were sampled, faults replaced and
never a reward of 0, one adapter on the server. Left out: resuming, limits, evaluation beside training, pages, wandb.
"""

import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import tinker

from harbortrainer.backend.policy import PolicyTrainer
from harbortrainer.backend.terms import adam_settings, agree
from harbortrainer.config import Config
from harbortrainer.learning.datums import TrainingSequence, training_sequences
from harbortrainer.learning.trajectory import TrajectoryGroup
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.rollout.venue import checked_venues
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.tasks.split import split_tasks
from harbortrainer.tasks.task import Task
from harbortrainer.train import checked
from harbortrainer.training.outside import Outside


@dataclass(frozen=True)
class Parts:
    """What a loop drives. `folder`: for the trials' files."""

    config: Config
    train: list[Task]
    held_out: list[Task]
    policy: PolicyTrainer  # one adapter on the server: update, publish, save
    sampler: PolicySampler  # what the trials ask; it samples the weights published last
    rollouts: Rollouts  # runs groups of trials
    folder: Path


async def loop(config: Config, outside: Outside | None = None) -> list[float]:
    """Train for `max_steps` steps. Returns the mean reward of each. Raises UserError for what the user can mend."""
    async with opened(config, outside or Outside()) as parts:
        rewards: list[float] = []
        rng = np.random.default_rng(config.seed)
        await publish(parts, 0)
        await evaluate(parts, 0)
        for step in range(config.max_steps):
            order: list[int] = rng.permutation(len(parts.train)).tolist()
            batch = [parts.train[index] for index in order[: config.batch_size]]
            groups = await run_trials(parts, "step", step, batch)
            sequences = [one for group in groups for one in datums(group)]
            if sequences:  # else all groups were constant: there is nothing to learn
                await update(parts, sequences)
                await publish(parts, step + 1)
            rewards.append(mean_reward(groups))
            print(f"step {step + 1}: reward {rewards[-1]:.3f}, {len(sequences)} datums", flush=True)
        await evaluate(parts, config.max_steps)
        print(f"saved {await parts.policy.save(config.max_steps)}")
        return rewards


# -- the algorithm


def datums(group: TrajectoryGroup) -> list[TrainingSequence]:
    """The sequences of one group, with A = (r - mean) / std on each sampled token; none for a constant group.

    Trials without a grade are in `group.lost`, and no members. A sequence is a segment of a trial: ids as they were
    sent and sampled, with the mask and log-probabilities of the sampled ones.
    """
    rewards = group.rewards_G
    if len(rewards) < 2 or (spread := pstdev(rewards)) < 1e-6:
        return []
    advantages = [(reward - fmean(rewards)) / spread for reward in rewards]
    pairs = zip(group.trajectories_G, advantages, strict=True)
    return [one for trajectory, advantage in pairs for one in training_sequences(trajectory, advantage)]


async def update(parts: Parts, sequences: Sequence[TrainingSequence]) -> None:
    """Take one optimizer step on the mean over all sampled tokens: the server sums, so advantages are divided here."""
    n_tokens = sum(int(one.mask_T.sum()) for one in sequences)
    scaled = [one.with_advantages(one.advantages_T / n_tokens) for one in sequences]
    adam = tinker.AdamParams(**adam_settings(parts.config))
    result = await parts.policy.update(scaled, loss_fn="importance_sampling", loss_fn_config=None, adam=adam)
    gaps = [
        float(np.abs(trained[one.mask_T] - one.logprobs_T[one.mask_T]).max())
        for one, trained in zip(scaled, result.logprobs_D, strict=True)
    ]
    if max(gaps) > 0.5:  # nats: the trainer's weights should be those that sampled
        print(f"warning: sampler and trainer differ by {max(gaps):.2f} nats on a token")


async def publish(parts: Parts, step: int) -> None:
    """Give the trials that start from now on the weights of the policy."""
    parts.sampler.publish(await parts.policy.publish(step), step)
    parts.policy.retire()  # older ones are deleted: no trial runs


async def evaluate(parts: Parts, step: int) -> None:
    """Print the mean reward on the held-out tasks."""
    if parts.held_out:
        groups = await run_trials(parts, "eval", step, parts.held_out)
        print(f"held out after step {step}: {mean_reward(groups):.3f}", flush=True)


def mean_reward(groups: Sequence[TrajectoryGroup]) -> float:
    """The mean over the graded trials of all groups; 0 without any."""
    rewards = [reward for group in groups for reward in group.rewards_G]
    return fmean(rewards) if rewards else 0.0


# -- what it runs on


async def run_trials(parts: Parts, kind: str, step: int, tasks: Sequence[Task]) -> list[TrajectoryGroup]:
    """Run a group of trials of each task. A fault is replaced by a new trial, twice at most."""
    training = kind == "step"
    return await parts.rollouts.run_groups(
        tasks,
        parts.config.group_size if training else parts.config.eval_group_size,
        parts.folder / f"{kind}_{step:06d}",
        kind="step" if training else "eval",
        step=step,
        temperature=parts.config.temperature,
    )


@contextlib.asynccontextmanager
async def opened(config: Config, outside: Outside) -> AsyncGenerator[Parts]:
    """Make the parts; containers, images and the adapter's slot are released at the end of the block."""
    tasks = load_sources(find_sources(config.tasks_dir), config.tasks_include, config.tasks_exclude)
    train, held_out = split_tasks(tasks, config.eval_split, config.eval_tasks, config.seed, config.allow_family_overlap)
    template = outside.load_template(config.model_name, config.enable_thinking, config.tool_format)
    notes = await asyncio.to_thread(checked_venues, tasks, config, template, outside.venues)
    backend = await outside.connect(config)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(backend.close, done=True)
        notes += agree(config, backend.kind, backend.contract, backend.max_context).notes
        print(*notes, sep="\n")
        sampler = PolicySampler(
            powers_of_two=backend.kind.answers_of_powers,
            silences=backend.silences,
        )
        run_id = uuid.uuid4().hex[:12]  # in the labels of its containers
        rollouts = Rollouts(config, sampler, template, run_id, venues=outside.venues)
        policy = await PolicyTrainer.create(backend, config)
        stack.push_async_callback(policy.close)
        await stack.enter_async_context(rollouts.opened(tasks, print))
        yield Parts(config, train, held_out, policy, sampler, rollouts, Path(config.logs_dir) / f"loop-{run_id}")


if __name__ == "__main__":
    asyncio.run(loop(checked(sys.argv[1:]).config))
