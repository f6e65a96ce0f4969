"""GRPO on the quickstart tasks with a simulated terminal, against a real server: settings can be tried in minutes.

scripts/start_skyrl_tx.sh --background models/quickstart
python -m scripts.quickstart.simulate skyrl_tx_url=http://localhost:8000 learning_rate=5e-3 n_epochs=4

Everything but Docker, tmux and Harbor's loop is the trainer's own. Takes the trainer's settings.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import chz
import numpy as np

from harbortrainer.backend.contract import kind_of
from harbortrainer.backend.policy import PolicyTrainer
from harbortrainer.config import Config
from harbortrainer.harbor import without_litellm
from harbortrainer.learning.batch import assemble
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, group_trajectories
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.run.metrics import outcome_metrics, turn_metrics
from harbortrainer.training.outside import Outside
from harbortrainer.training.update import Updater
from scripts.quickstart import prompts
from scripts.quickstart.cases import Case
from scripts.quickstart.make_tasks import held_out, make_cases
from scripts.quickstart.terminal import SimulatedTerminal

with without_litellm():
    from harbortrainer.policy.tinker_llm import TinkerLLM
    from harbortrainer.venues.harbor.terminus import AnswerParser


async def converse(case: Case, llm: TinkerLLM, max_turns: int) -> tuple[float, Outcome]:
    """Terminus-2's loop; the reward, and how it ended. Counts unreadable answers in `llm`."""
    terminal, parser, asked = SimulatedTerminal(case), AnswerParser(), False
    history: list[dict[str, str]] = []
    said = prompts.first_prompt(case.instruction + "\n", terminal.observe())
    for _ in range(max_turns):
        answer = (await llm.call(said, history)).content
        history += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        parsed = parser.parse_response(answer)
        llm.parse_failures = parser.failures
        if parsed.error:
            said = prompts.parse_failure(parsed.error)
            continue
        for command in parsed.commands:
            terminal.type(command.keystrokes)
        screen = terminal.observe()
        if parsed.is_task_complete and asked:
            return float(terminal.solved), Outcome.COMPLETED
        asked = parsed.is_task_complete
        said = prompts.confirmation(screen) if asked else screen
    return float(terminal.solved), Outcome.MAX_TURNS


class Simulation:
    def __init__(self, config: Config, policy: PolicyTrainer) -> None:
        self._config, self._policy = config, policy
        self._sampler = PolicySampler(powers_of_two=kind_of(config).answers_of_powers)
        self._template = ChatTemplate.load(config.model_name, False)
        self._slots = asyncio.Semaphore(config.n_parallel_envs)

    async def publish(self, step: int) -> None:
        self._sampler.publish(await self._policy.publish(step), step)

    async def trial(self, name: str, case: Case, seed: int) -> Trajectory:
        c = self._config
        limits = {"max_tokens": c.max_tokens, "context_limit": c.context_limit, "temperature": c.temperature}
        llm = TinkerLLM(self._sampler, self._template, **limits, seed=seed)
        async with self._slots:
            reward, outcome = await converse(case, llm, c.max_turns)
        return Trajectory(name, f"{name}-{seed}", tuple(llm.turns), reward, outcome, stats=llm.stats)

    async def groups(self, cases: Mapping[str, Case], size: int, step: int) -> list[TrajectoryGroup]:
        async def group(number: int, name: str, case: Case) -> TrajectoryGroup:
            first = ((self._config.seed * 1000 + step + 1) * 1000 + number) * 100
            trials = [self.trial(name, case, first + member) for member in range(size)]
            return group_trajectories(name, await asyncio.gather(*trials))

        numbered = enumerate(cases.items())
        return list(await asyncio.gather(*(group(number, name, case) for number, (name, case) in numbered)))


def mean_reward(groups: Sequence[TrajectoryGroup]) -> float:
    return float(np.mean([reward for group in groups for reward in group.rewards_G]))


def described(groups: Sequence[TrajectoryGroup], updated: Mapping[str, float]) -> str:
    """Reward, share of answers that could not be read, trials that max_turns ended, sampler against trainer."""
    trials = [trial for group in groups for trial in group.trajectories_G]
    unreadable = turn_metrics(trials)["turn/parse_failure_rate"]
    ended = outcome_metrics(trials)["outcome/max_turns"]
    gap = updated.get("logprobs/max_abs_difference", 0.0)
    return f"{mean_reward(groups):.3f}, unreadable {unreadable:.0%}, by max_turns {ended:.0f}, gap {gap:.0e}"


def by_kind(groups: Sequence[TrajectoryGroup]) -> str:
    kinds: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        kinds[group.task_name.rpartition("-")[0]] += group.rewards_G
    return " ".join(f"{kind} {np.mean(rewards):.2f}" for kind, rewards in kinds.items())


async def simulate(config: Config) -> None:
    policy = await PolicyTrainer.create(await Outside().connect(config), config)
    try:
        await train(config, Simulation(config, policy), policy)
    finally:
        await policy.close()


async def train(config: Config, simulation: Simulation, policy: PolicyTrainer) -> None:
    cases = make_cases()
    unseen = {name: case for name, case in cases.items() if held_out(name)}
    seen = [name for name in cases if not held_out(name)]
    rng, epochs = np.random.default_rng(config.seed), config.n_epochs or 1
    steps = epochs * len(seen) // config.batch_size
    names = np.concatenate([rng.permutation(seen) for _ in range(epochs)]).tolist()
    updater, rewards, began = Updater(config, policy, steps), [], time.monotonic()

    await simulation.publish(0)
    print(f"held out before {mean_reward(await simulation.groups(unseen, config.eval_group_size, -1)):.3f}")
    for step in range(steps):
        batch = names[step * config.batch_size : (step + 1) * config.batch_size]
        groups = await simulation.groups({name: cases[name] for name in batch}, config.group_size, step)
        metrics = await updater.update(step, assemble(groups, config))
        await simulation.publish(step + 1)
        rewards.append(mean_reward(groups))
        print(f"step {step + 1}: {described(groups, metrics)}", flush=True)
    groups = await simulation.groups(unseen, config.eval_group_size, steps)
    print(f"held out after {mean_reward(groups):.3f} ({by_kind(groups)})")
    print(f"gain {np.mean(rewards[-3:]) - np.mean(rewards[:3]):.3f} in {time.monotonic() - began:.0f} s: ", end="")
    print(" ".join(f"{reward:.2f}" for reward in rewards), flush=True)


def main(config: Config) -> None:
    asyncio.run(simulate(config))


if __name__ == "__main__":
    chz.nested_entrypoint(main)
