"""A policy and a chat template that every machine can make for itself, and a driver whose trials run on a cluster."""

import asyncio
import collections
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harbortrainer.config import Config
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.gates import TrialObserver
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.trajectories import read_batch, write_trajectory
from harbortrainer.tasks.folders import load_tasks
from harbortrainer.venues.harbor.container_agent import TERMINUS
from harbortrainer.venues.harbor.venue import HarborVenue
from tests.support.fakes import Request, ScriptedClient, chat_template
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.trial_parts import answer

AGENTS = Path(__file__).parents[2] / ".state" / "agents"  # as scripts/setup.sh --agents makes them
Hosts = Literal["none", "ray"]


@dataclass(frozen=True)
class Script:
    """A policy: `turns` turns of `turn_sec` each, the first of which solves the task. `agent`: what it speaks to."""

    turns: int = 3
    turn_sec: float = 0.0
    agent: str = TERMINUS

    def open(self, config: Config) -> "PacedClient":
        return PacedClient(self)


class PacedClient(ScriptedClient):
    def __init__(self, script: Script) -> None:
        super().__init__(self._reply, template_of(script.agent))
        self.script = script

    def portable(self) -> Script:
        return self.script

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        await asyncio.sleep(self.script.turn_sec)
        return await super().sample(prompt, num_samples, sampling_params)

    def _reply(self, request: Request) -> str:
        said = self.template.tokenizer.decode(request.prompt_T).count("<|im_start|>assistant") - 1
        if self.script.agent != TERMINUS:
            last = said >= self.script.turns - 1
            return call("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" if last else "echo Hello > hello.txt")
        if said >= self.script.turns - 2:
            return answer(complete=True)
        return answer("echo Hello > hello.txt\n")


def call(command: str) -> str:
    """A command of mini-swe-agent."""
    return f"\n<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': command}})}\n</tool_call>"


def template_of(agent: str) -> ChatTemplate:
    return chat_template() if agent == TERMINUS else chat_of(QWEN_TOOLS)


def load_template(config: Config) -> ChatTemplate:
    return template_of(config.agent)


def say(kind: str, **what: Any) -> None:
    print(json.dumps({"kind": kind, "pid": os.getpid(), **what}), flush=True)


class Turns(TrialObserver):
    """Says each turn."""

    def sampled(self, tokens: int) -> None:
        say("turn")


def rss() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def config_of(hosts: Hosts, parallel: int, script: Script) -> Config:
    program: Any = {} if script.agent == TERMINUS else {"agent": script.agent, "agents_dir": str(AGENTS)}
    return Config(
        model_name="m", tasks_dir=".", hosts=hosts, n_parallel_envs=parallel, max_turns=script.turns + 2,
        context_limit=10**6, trial_timeout_sec=600.0, **program,
    )  # fmt: skip


async def drive(
    folder: Path, run_id: str, n: int, parallel: int, script: Script, silence_sec: float, hosts: Hosts
) -> None:
    """One batch of `n` trials; its groups continue what an earlier process has stored."""
    (task,) = load_tasks(str(folder / "tasks"))
    config = config_of(hosts, parallel, script)
    sampler = PolicySampler()
    sampler.publish(script.open(config), 1)
    ledger = Ledger(folder / "ledger.jsonl")
    venue = HarborVenue(load_template=load_template, silence_sec=silence_sec)
    rollouts = Rollouts(
        config, sampler, template_of(script.agent), run_id, ledger, observer=Turns(), venues={"harbor": venue}
    )
    stored = folder / "trajectories" / "step_000000"  # where the ledger looks for what a killed process has stored
    done = ledger.reusable("step", read_batch(stored)) if stored.exists() else {}
    began = time.monotonic()
    async with rollouts.opened([task], lambda line: say("line", line=line)):
        say("ready", seconds=time.monotonic() - began, most=rollouts.most_trials)
        began, cpu = time.monotonic(), time.process_time()

        def keep(trajectory: Trajectory) -> None:
            write_trajectory(stored, trajectory)
            say("trial", name=trajectory.trial_name, rss=rss())

        batch = folder / "rollouts"
        groups = await rollouts.run_groups([task], n, batch, step=0, temperature=1.0, done=done, on_trajectory=keep)
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        began = time.monotonic()
        sampler.publish(script.open(config), 2)
        await sampler.drain()
        say("published", seconds=time.monotonic() - began)
        trials = [trial for group in groups for trial in (*group.trajectories_G, *group.lost)]
        rewards = collections.Counter(str(trial.reward) for trial in trials)
        folders = sum((folder / "rollouts" / trial.trial_name / "result.json").is_file() for trial in trials)
        counted = {"folders": folders, "npz": len([*stored.glob("*.npz")]), "counters": sampler.totals}
        say("batch", seconds=seconds, cpu_ms=1000 * cpu / n, rewards=rewards, **counted)
    say("over", modules="ray" in sys.modules)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(drive(Path(given.pop("folder")), script=Script(**given.pop("script", {})), **given))
