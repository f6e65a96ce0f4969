"""Agents in containers: settings that cannot work, what a batch says about the agent, the pack's identity."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.bundled.agents.address import MOUNT
from harbortrainer.cli.arguments import validate
from harbortrainer.config import Config
from harbortrainer.errors import EnvironmentFault, UserError
from harbortrainer.learning.agents import by_agent, drawn, of_trial
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrialName, Turn, group_trajectories
from harbortrainer.model_api.gate import check_agents
from harbortrainer.plugins import known
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.agent_pack import KEY, NAME, agent_versions, check_pack, pack_digest
from harbortrainer.venues.harbor.container_agent import agent_memory, check_agent, named
from harbortrainer.venues.harbor.environment import check_agent_tasks, environment_config, with_agent
from tests.conftest import ROOT
from tests.support.families import QWEN, QWEN_TOOLS, chat_of
from tests.support.task_folder import write_task

TURN = Turn(0, (1, 2), (3,), (-0.5,), 0)
MEMORY = "[environment]\nmemory_mb = 1024\n"


def config(**fields: Any) -> Config:
    given: dict[str, Any] = {"model_name": "m", "tasks_dir": ".", "agent": "codex"}
    return Config(**given | fields)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "codex").write_text("#!/bin/sh\n")
    (folder / "codex.lock").write_text("one\n")
    return folder


def test_settings_that_cannot_work_are_refused_with_a_fix(tmp_path: Path, pack: Path) -> None:
    check_agent(config(agents_dir=str(pack)))
    check_agent(config(agent="terminus-2"))
    for given, why in (
        ({"agents_dir": str(tmp_path)}, r"agents_dir=\S+: it has no bin/codex; run scripts/agents/pack \S+ codex"),
        ({"environment_type": "daytona"}, "environment_type=daytona cannot reach this process"),
        ({"agent": "terminus-2", "agents_dir": "x"}, "agents_dir=x: agent=terminus-2 has none"),
        ({"agent": "terminus-2", "agent_kwargs": {"a": 1}}, "agent_kwargs={'a': 1}: agent=terminus-2 has none"),
        ({"agent": "terminus-2,codex", "environment_type": "daytona"}, "agent=codex: environment_type=daytona cannot"),
        (
            {"agent": "codex,opencode", "agents_dir": str(pack)},
            r"it has no bin/opencode; run scripts/agents/pack \S+ o",
        ),
        ({"agent": "terminus-2,codex", "agent_kwargs": {"a": 1}}, r"agent_kwargs=.*, and agent=terminus-2,codex names"),
    ):
        with pytest.raises(UserError, match=why):
            check_agent(config(**given))


def test_an_environment_gets_the_programs_and_their_memory(tmp_path: Path, pack: Path) -> None:
    task = write_task(tmp_path / "hello", toml=MEMORY)
    own = {"mounts": [{"type": "bind", "source": "/data", "target": "/data"}]}
    made = with_agent(environment_config("docker", own, task, "r"), task, config(agents_dir=str(pack)))
    assert made.override_memory_mb == 1024 + named("agent", "codex").memory_mb
    assert [(one["target"], one.get("read_only", False)) for one in made.mounts or ()] == [
        ("/data", False), (MOUNT, True),
    ]  # fmt: skip
    given = environment_config("docker", {"override_memory_mb": 3000}, task, "r")
    assert with_agent(given, task, config()).override_memory_mb == 3000
    unlimited = write_task(tmp_path / "free")
    assert with_agent(environment_config("docker", {}, unlimited, "r"), unlimited, config()).override_memory_mb is None
    assert with_agent(given, task, config(agent="terminus-2")) is given


def test_tasks_that_only_terminus_can_do_are_named(tmp_path: Path) -> None:
    files = {"environment/docker-compose.yaml": "services: {main: {image: x}}\n"}
    task = write_task(tmp_path / "other", files=files)
    with pytest.raises(UserError, match=r"task other has docker-compose\.yaml, for which only agent=terminus-2 works"):
        with_agent(environment_config("docker", {}, task, "r"), task, config())


def test_a_template_without_tools_is_refused_before_the_first_trial(tmp_path: Path, pack: Path) -> None:
    task = write_task(tmp_path / "hello")
    check_agent_tasks([task], config(agents_dir=str(pack)), chat_of(QWEN_TOOLS))
    with pytest.raises(UserError, match="tool_format=hermes"):
        check_agent_tasks([task], config(agents_dir=str(pack)), chat_of(QWEN))
    check_agent_tasks([task], config(agent="terminus-2"), chat_of(QWEN))


def trial(number: int, outcome: Outcome = Outcome.COMPLETED, detail: str = "", **stats: float) -> Trajectory:
    return Trajectory(f"t{number}", f"n{number}", (TURN,), 1.0, outcome, detail, stats={"wire_turns": 1.0} | stats)


def test_the_same_failure_in_a_fifth_of_a_batch_is_the_agents(caplog: pytest.LogCaptureFixture) -> None:
    fine = [trial(number) for number in range(11)]
    failed = [trial(n, Outcome.POLICY_ERROR, f"the agent failed: at 12:0{n} no such file /tmp/a{n}") for n in range(3)]
    with pytest.raises(EnvironmentFault, match="3 of 14 trials ended after one answer with: the agent failed: at #:#"):
        check_agents([*fine, *failed])
    check_agents([*fine, *fine, *failed])  # 12 %
    check_agents([*fine[:4], *failed[:2]])  # two may be chance
    titled = [replace(one, turns=(TURN, replace(TURN, segment=1)), side_segments=(0,)) for one in failed]
    with pytest.raises(EnvironmentFault, match="3 of 14 trials ended after one answer"):
        check_agents([*fine, *titled])
    check_agents([*fine, *(replace(one, turns=(TURN, TURN)) for one in failed)])  # they have worked before
    check_agents([replace(one, stats={}) for one in failed])  # Terminus-2
    assert caplog.text == ""


def test_a_wire_that_breaks_histories_is_warned_of_and_stops_the_run(caplog: pytest.LogCaptureFixture) -> None:
    check_agents([trial(0, wire_foreign=1.0, wire_matched=19.0)])
    assert "1 of 20 histories" in caplog.text
    with pytest.raises(EnvironmentFault, match="10 of 20 histories"):
        check_agents([trial(0, wire_foreign=10.0, wire_matched=10.0)])


SEVERAL = "terminus-2,codex,mini-swe-agent"


def of_step(step: int, seed: int = 0, groups: int = 6) -> list[str]:
    return [drawn(SEVERAL, seed, str(TrialName("step", step, problem, 0))) for problem in range(groups)]


def test_a_group_keeps_its_agent_and_a_batch_has_each_in_its_share() -> None:
    batches = [of_step(step) for step in range(20)]
    assert batches == [of_step(step) for step in range(20)]
    assert all(Counter(batch) == dict.fromkeys(SEVERAL.split(","), 2) for batch in batches)
    assert len({tuple(batch) for batch in batches}) == len({tuple(of_step(0, seed)) for seed in range(20)}) == 3
    trials = [TrialName("step", 4, 1, member, attempt) for member in range(8) for attempt in (1, 2)]
    assert {drawn(SEVERAL, 0, str(trial)) for trial in trials} == {batches[4][1]}
    held_out = [[drawn(SEVERAL, 0, str(TrialName("eval", step, n, 0))) for n in range(6)] for step in (0, 7)]
    assert held_out[0] == held_out[1]
    twice = Counter(drawn("codex,codex,terminus-2", 0, str(TrialName("step", 0, n, 0))) for n in range(9))
    assert twice == {"codex": 6, "terminus-2": 3}
    assert drawn("codex", 0, "any name") == "codex"


def test_a_trial_has_the_settings_of_its_own_agent() -> None:
    one = config(agent=SEVERAL)
    name = str(TrialName("step", 0, 0, 0))
    assert of_trial(one, name).agent == drawn(SEVERAL, one.seed, name) and of_trial(config(), name) == config()
    assert [each.agent for each in by_agent(one)] == SEVERAL.split(",")
    assert agent_memory(config(agent="terminus-2,codex")) == named("agent", "codex").memory_mb


def test_several_agents_are_checked_and_recorded_each(pack: Path) -> None:
    for name in ("codex", "opencode"):
        (pack / f"{name}.lock").write_text(f"sha {name}-1\n")
    both = config(agent="codex,opencode", agents_dir=str(pack))
    assert agent_versions(both)[NAME] == "codex codex-1, opencode opencode-1"
    versions = {KEY: pack_digest(both)}
    (pack / "opencode.lock").write_text("sha opencode-2\n")
    with pytest.raises(UserError, match="its programs of codex,opencode are not those"):
        check_pack(both, versions)
    with pytest.raises(UserError, match="agent=codec: unknown; did you mean codex"):
        validate(config(agent="terminus-2,codec"))


def test_an_agent_that_fails_by_itself_is_seen_beside_one_that_works() -> None:
    """One in nine trials of the batch, and all of its own."""
    groups = [TrialName("step", 0, problem, 0) for problem in range(27)]
    agents = "codex" + ",terminus-2" * 8
    broken = [name for name in groups if drawn(agents, 0, str(name)) == "codex"]
    trials = [
        Trajectory("t", str(name), (TURN,), 0.0, Outcome.POLICY_ERROR if name in broken else Outcome.COMPLETED,
                   "no route" if name in broken else "", stats={"wire_turns": 1.0})
        for name in groups
    ]  # fmt: skip
    check_agents(trials)
    rollouts = Rollouts(config(agent=agents), PolicySampler(), chat_of(QWEN), "run")
    with pytest.raises(EnvironmentFault, match="3 of 3 trials ended after one answer with: no route"):
        rollouts.refuse_all_lost([group_trajectories("t", trials)])


@pytest.mark.parametrize("agent", known("agents"))
def test_every_agent_has_a_lock_that_names_no_registry(agent: str) -> None:
    folder = ROOT / "scripts" / "agents" / agent
    texts = [path.read_text() for path in folder.iterdir()]
    assert texts and not any("://" in text for text in texts)
    if (lock := folder / "package-lock.json").is_file():
        packages = {name: one for name, one in json.loads(lock.read_text())["packages"].items() if name}
        assert packages and all(one["integrity"].startswith("sha512-") for one in packages.values())
