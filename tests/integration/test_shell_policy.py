"""What mini-swe-agent asks in a real trial is what its policies were trained on: models/shell, and demonstrations."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from harbortrainer.bundled.agents.session import AgentService
from harbortrainer.config import Config
from harbortrainer.docker.daemon import Daemon
from harbortrainer.learning.datums import training_sequences
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.venue import RunParts
from harbortrainer.sft.dataset import load_dataset
from harbortrainer.sft_config import SftConfig
from harbortrainer.tasks.folders import digest
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.trial import LocalHost
from scripts.easy import make_tasks as easy_tasks
from scripts.easy.demonstrations import write_records
from scripts.quickstart.make_tasks import make_cases
from scripts.quickstart.vocabulary import TURN_END
from scripts.shell import demonstrations, transcripts
from scripts.shell.agent import Agent, System
from scripts.shell.vocabulary import build_tokenizer
from tests.support.agent_shells import PACK
from tests.support.fakes import ScriptedClient, byte_tokenizer
from tests.support.trial_parts import request

MODEL = "models/shell"
RUN = f"test-shell-{os.getpid()}"
TASK, EASY_TASK = "copy-5", "replace-1"
SMOLLM2 = Path("tests/support/templates/smollm2.jinja")  # it renders no tools

pytestmark = pytest.mark.skipif(
    not (PACK / "bin" / "mini-swe-agent").is_file(), reason="scripts/setup.sh --agents makes the programs"
)


def test_the_committed_tokenizer_is_the_one_that_is_built() -> None:
    built, template = build_tokenizer(Agent(PACK)), ChatTemplate.load(MODEL, enable_thinking=False)
    assert built.get_vocab() == template.tokenizer.get_vocab()
    assert built.chat_template == template.tokenizer.chat_template


async def test_real_prompts_are_those_of_the_pretraining(docker_ready: str, tmp_path: Path) -> None:
    template = ChatTemplate.load(MODEL, enable_thinking=False)
    case = make_cases()[TASK]
    rng = random.Random(next(seed for seed in range(99) if _is_right(seed)))
    parts = [text for text, _ in transcripts.segments(Agent(PACK), template.tokenizer, case, rng, _this_system())]
    encoded = [template.tokenizer.encode(text, add_special_tokens=False) for text in parts]
    answers = [parts[1].removesuffix(TURN_END), parts[3].removesuffix(TURN_END)]
    client, _ = await _trial(template, answers, Path("datasets/quickstart") / TASK, tmp_path)
    assert [asked.prompt_T for asked in client.requests] == [encoded[0], encoded[0] + encoded[1] + encoded[2]]


@pytest.mark.nightly
async def test_a_demonstration_has_the_ids_of_a_real_trial_with_its_answers(docker_ready: str, tmp_path: Path) -> None:
    cases = easy_tasks.write_tasks(tmp_path / "tasks")
    said = demonstrations.conversation(Agent(PACK), cases[EASY_TASK], random.Random(0), 1.0, _this_system())
    template = ChatTemplate(byte_tokenizer(SMOLLM2.read_text()), tool_format="hermes")
    answers = [message["content"] for message in said if message["role"] == "assistant"]
    _, trajectory = await _trial(template, answers, tmp_path / "tasks" / EASY_TASK, tmp_path)
    write_records(tmp_path / "talks.jsonl", [demonstrations.record(said)])
    config = SftConfig(model_name="m", data=(str(tmp_path / "talks.jsonl"),), tool_format="hermes")
    (learned,) = load_dataset(config, template).train
    (trained,), (sampled,) = learned.sequences_D, training_sequences(trajectory, 1.0)
    assert trained.tokens_T.tolist() == sampled.tokens_T.tolist()
    assert trained.mask_T.tolist() == sampled.mask_T.tolist()


async def _trial(
    template: ChatTemplate, answers: Sequence[str], folder: Path, tmp_path: Path
) -> tuple[ScriptedClient, Trajectory]:
    """A real trial of the task in `folder`, which these answers solve."""
    client, sampler = ScriptedClient(answers, template), PolicySampler(attempts=1)
    sampler.publish(client, 0)
    config = Config(
        model_name=MODEL, tasks_dir=str(folder.parent), agent="mini-swe-agent", agents_dir=str(PACK),
        context_limit=16_000, max_tokens=256, trial_timeout_sec=900.0,
    )  # fmt: skip
    service = AgentService.of(template)
    host = LocalHost(
        RunParts(config, sampler, template, RUN, Gates.of(config)), Daemon(config.outage_limit_sec), agents=service
    )
    async with service.endpoint:
        trajectory = await host.run(request(Task(folder.name, folder, digest(folder)), tmp_path))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0), trajectory.detail
    return client, trajectory


def _this_system() -> System:
    machine = os.uname()
    return System(machine.release, machine.version)


def _is_right(seed: int) -> bool:
    rng = random.Random(seed)
    case = make_cases()[TASK]
    return transcripts.command_of(case, rng.choice(transcripts.PLANS), rng).typed == case.right
