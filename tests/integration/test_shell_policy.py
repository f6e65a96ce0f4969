"""What mini-swe-agent asks in a real trial is what models/shell was pretrained on, to the letter."""

import os
import random
from pathlib import Path

import pytest

from harbortrainer.config import Config
from harbortrainer.docker import cleaning
from harbortrainer.docker.daemon import Daemon
from harbortrainer.learning.trajectory import Outcome
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.agent_session import AgentService
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.trial import TrialContext, run_trial
from harbortrainer.tasks.folders import digest
from harbortrainer.tasks.task import Task
from scripts.quickstart.make_tasks import make_cases
from scripts.quickstart.vocabulary import TURN_END
from scripts.shell import transcripts
from scripts.shell.agent import Agent, System
from scripts.shell.vocabulary import build_tokenizer
from tests.support.agent_endings import PACK
from tests.support.fakes import ScriptedClient
from tests.support.trial_parts import request

MODEL = "models/shell"
RUN = f"test-shell-{os.getpid()}"
TASK = "copy-5"

pytestmark = pytest.mark.skipif(
    not (PACK / "bin" / "mini-swe-agent").is_file(), reason="scripts/setup.sh --agents makes the programs"
)


def test_the_committed_tokenizer_is_the_one_that_is_built() -> None:
    built, template = build_tokenizer(Agent(PACK)), ChatTemplate.load(MODEL, enable_thinking=False)
    assert built.get_vocab() == template.tokenizer.get_vocab()
    assert built.chat_template == template.tokenizer.chat_template


async def test_real_prompts_are_those_of_the_pretraining(
    docker_ready: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = os.uname()
    monkeypatch.setattr(transcripts, "some_system", lambda rng: System(machine.release, machine.version))
    template = ChatTemplate.load(MODEL, enable_thinking=False)
    case = make_cases()[TASK]
    rng = random.Random(next(seed for seed in range(99) if _is_right(seed)))
    parts = [text for text, _ in transcripts.segments(Agent(PACK), template.tokenizer, case, rng)]
    encoded = [template.tokenizer.encode(text, add_special_tokens=False) for text in parts]
    client = ScriptedClient([parts[1].removesuffix(TURN_END), parts[3].removesuffix(TURN_END)], template)
    sampler = PolicySampler(attempts=1)
    sampler.publish(client, 0)
    config = Config(
        model_name=MODEL, tasks_dir="datasets/quickstart", agent="mini-swe-agent", agents_dir=str(PACK),
        context_limit=1024, max_tokens=32, trial_timeout_sec=900.0,
    )  # fmt: skip
    service, folder = AgentService.of(template), Path("datasets/quickstart") / TASK
    context = TrialContext(
        config, sampler, template, RUN, Gates.of(config), Daemon(config.outage_limit_sec), agents=service
    )
    try:
        async with service.endpoint:
            trajectory = await run_trial(request(Task(TASK, folder, digest(folder)), tmp_path), context)
    finally:
        await cleaning.drain()
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0), trajectory.detail
    assert [asked.prompt_T for asked in client.requests] == [encoded[0], encoded[0] + encoded[1] + encoded[2]]


def _is_right(seed: int) -> bool:
    rng = random.Random(seed)
    case = make_cases()[TASK]
    return transcripts.command_of(case, rng.choice(transcripts.PLANS), rng).typed == case.right
