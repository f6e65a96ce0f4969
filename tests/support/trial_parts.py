"""A tiny real task and scripted policies for the trial tests."""

import json
import os
from pathlib import Path
from typing import Any

from harbortrainer.config import Config
from harbortrainer.docker.daemon import Daemon
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.venue import RunParts, TrialRequest
from harbortrainer.tasks.folders import digest
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.trial import LocalHost
from tests.support.fakes import ScriptedClient, chat_template

TASK_TOML = """schema_version = "1.4"
[task]
name = "test/hello"
[agent]
timeout_sec = {agent_timeout}
[verifier]
timeout_sec = 300.0
[environment]
cpus = 1
memory_mb = 512
"""
TEST_SH = '[ "$(cat /app/hello.txt 2>/dev/null)" = "Hello" ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'


def make_task(folder: Path, *, name: str = "hello", test: str = TEST_SH, agent_timeout: float = 600.0) -> Task:
    """A task that wants /app/hello.txt to hold Hello."""
    path = folder / name
    (path / "environment").mkdir(parents=True)
    (path / "tests").mkdir()
    (path / "task.toml").write_text(TASK_TOML.format(agent_timeout=agent_timeout))
    (path / "instruction.md").write_text("Write Hello to hello.txt.\n")
    (path / "environment" / "Dockerfile").write_text("FROM harbortrainer/base:bookworm\nWORKDIR /app\n")
    (path / "tests" / "test.sh").write_text(f"#!/bin/bash\n{test}")
    return Task(name, path, digest(path))


def answer(*keystrokes: str, complete: bool = False, wait: float = 60.0) -> str:
    """What Terminus-2 expects from the policy. `wait`: a command that ends sooner is waited for no longer."""
    commands = [{"keystrokes": keys, "duration": wait} for keys in keystrokes]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete})


RUN = f"test-trials-{os.getpid()}"  # a label of this process: another one's tests may run beside it
SOLVE = [answer("echo Hello > hello.txt\n"), answer(complete=True), answer(complete=True)]


def local_host(
    answers: Any, *, sampler: PolicySampler | None = None, **fields: Any
) -> tuple[LocalHost, ScriptedClient]:
    """A host whose policy gives these answers; `fields` go to Config."""
    template = chat_template()
    client = ScriptedClient(answers, template)
    sampler = sampler or PolicySampler()
    sampler.publish(client, 7)
    defaults: dict[str, Any] = {
        "model_name": "fake/policy",
        "tasks_dir": ".",
        "max_turns": 6,
        "max_tokens": 2048,
        "context_limit": 32000,
        "trial_timeout_sec": 1200.0,
    }
    config = Config(**defaults | fields)
    return LocalHost(
        RunParts(config, sampler, template, RUN, Gates.of(config)), Daemon(config.outage_limit_sec)
    ), client


def request(task: Task, folder: Path, name: str = "s000000-p00-g00") -> TrialRequest:
    return TrialRequest(name, task, folder / "trials", 1.0, 5)
