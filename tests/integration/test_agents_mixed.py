"""Two agents in one batch, for real: each group has one of them, and keeps it when the run is continued."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.config import Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.agents import drawn
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.ledger import Ledger
from harbortrainer.tasks.folders import folder_of
from tests.support.agent_shells import PACK
from tests.support.fakes import Request, ScriptedClient
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.hosts_parts import call
from tests.support.trial_parts import RUN, answer, make_task

AGENTS = "terminus-2,mini-swe-agent"
IMPORTED = {"terminus-2": "TrainableTerminus2", "mini-swe-agent": "mini_swe_agent"}


@pytest.mark.nightly  # 76 s on 2 busy cores: the programs of Python take long to start
@pytest.mark.skipif(
    not (PACK / "bin" / "mini-swe-agent").exists(), reason="scripts/setup.sh --agents makes the programs"
)
async def test_groups_have_one_agent_each_and_keep_it(tmp_path: Path, nothing_left: None) -> None:
    template = chat_of(QWEN_TOOLS)

    def said(request: Request) -> str:
        text = template.tokenizer.decode(request.prompt_T)
        first = text.count("<|im_start|>assistant") == 1
        if "<tools>" in text:  # which Terminus-2 has not
            return call("echo Hello > hello.txt" if first else "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
        return answer("echo Hello > hello.txt\n") if first else answer(complete=True)

    given: dict[str, Any] = {"agent": AGENTS, "agents_dir": str(PACK), "max_turns": 6, "context_limit": 10**5}
    config = Config(model_name="m", tasks_dir=".", n_parallel_envs=2, **given)
    tasks = [make_task(tmp_path / "tasks", name=name) for name in ("one", "other")]
    for task in tasks:
        with (folder_of(task) / "task.toml").open("a") as file:
            file.write('network_mode = "no-network"\n')
    ledger, sampler = Ledger(tmp_path / "ledger.jsonl"), PolicySampler()
    sampler.publish(ScriptedClient(said, template), 1)
    batch = tmp_path / "rollouts" / "step_000000"

    async def grown(size: int, done: dict[str, Any]) -> dict[str, Any]:
        rollouts = Rollouts(config, sampler, template, RUN, ledger)
        async with rollouts.opened(tasks, print):
            groups = await rollouts.run_groups(tasks, size, batch, step=0, temperature=1.0, done=done)
        return {trial.trial_name: trial for group in groups for trial in (*group.trajectories_G, *group.lost)}

    first = await grown(1, {})
    trials = first | await grown(2, {name: replace(one) for name, one in first.items()})
    assert len(trials) == 4 and [trial.reward for trial in trials.values()] == [1.0] * 4
    acted = {
        record["trial"]: record["agent"]
        for record in read_lines(tmp_path / "ledger.jsonl")
        if record["event"] == "started"
    }
    assert acted == {name: drawn(AGENTS, config.seed, name) for name in trials}
    by_group = {TrialName.parse(name).group: agent for name, agent in acted.items()}
    assert sorted(by_group.values()) == sorted(AGENTS.split(","))
    assert all(by_group[TrialName.parse(name).group] == agent for name, agent in acted.items())
    for name, agent in acted.items():
        kept = json.loads((batch / name / "config.json").read_text())
        assert kept["agent"]["import_path"].endswith(f":{IMPORTED[agent]}")
