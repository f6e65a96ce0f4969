"""Real trials in real containers with a scripted policy: every way to end, and what it leaves behind."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harbor.trial.hooks import TrialEvent

from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.keeping import cleaning
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.quarantine import SAMPLING
from harbortrainer.tasks.folders import digest, folder_of
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.trial import new_trial
from tests.support.fakes import ScriptedClient
from tests.support.shapes import COMPOSE, SEPARATE, VERIFIER
from tests.support.task_folder import write_task
from tests.support.tiers import few, first
from tests.support.trial_parts import SOLVE, TEST_SH, answer, local_host, make_task, request

EXCLUDING = SEPARATE.replace('"/app/hello.txt"', '"/app"\nexclude = ["*.tmp"]')
MAIN_OF_COMPOSE = "com.docker.compose.service=main"
pytestmark = pytest.mark.usefixtures("nothing_left")
DONE = answer(complete=True)
NAME = "s000000-p00-g00"
AT_ONCE = 4  # trials wait most of their time
SMALL_CONTEXT = {"context_limit": 6000, "max_tokens": 1000, "max_turns": 99}


async def run(
    folder: Path, answers: Any, *, name: str = NAME, task: dict[str, Any] | None = None, **fields: Any
) -> Trajectory:
    trajectory, _ = await run_with_client(folder, answers, name=name, task=task, **fields)
    return trajectory


async def run_with_client(
    folder: Path, answers: Any, *, name: str = NAME, task: dict[str, Any] | None = None, **fields: Any
) -> tuple[Trajectory, ScriptedClient]:
    """`name`: of the trial; no other one that runs beside it has it."""
    host, client = local_host(answers, **fields)
    return await host.run(request(make_task(folder, **task or {}), folder, name)), client


async def test_solved_and_every_prompt_is_exact(tmp_path: Path) -> None:
    trajectory, client = await run_with_client(tmp_path, SOLVE)
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    seen: list[int] = []
    for turn, asked in zip(trajectory.turns, client.requests, strict=True):
        seen += turn.new_tokens_T
        assert asked.prompt_T == seen
        seen += turn.completion_tokens_T
        assert (turn.segment, turn.weights_version) == (0, 7)
    assert {"environment", "agent_setup", "agent", "sampling", "verifier", "teardown", "total"} <= set(trajectory.times)
    assert trajectory.times["total"] >= trajectory.times["agent"] > 0
    folder = Path(trajectory.trial_dir)
    stored = json.loads((folder / "result.json").read_text())
    assert stored["agent_result"]["metadata"]["stop_reason"] == "done"
    assert "token_ids" not in (folder / "agent" / "trajectory.json").read_text()
    assert (folder / "verifier" / "reward.txt").read_text().strip() == "1"


async def test_a_reward_that_depends_on_what_no_task_asked_for_is_none(tmp_path: Path) -> None:
    """Without any work it earns 0; with work that verification reads before the change, the trial is ungraded."""
    change = "ln -s /usr/bin/true /usr/local/bin/cmp"
    test = "{}cmp hello.txt <(echo Hello) && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    done = [DONE, DONE]
    idle, half, honest = await asyncio.gather(
        run(tmp_path / "idle", [answer(f"{change}\n"), *done], name="idle", task={"test": test.format("")}),
        run(
            tmp_path / "half",
            [answer(f"{change}; echo Hell > hello.txt\n"), *done],
            name="half",
            task={"test": test.format("read -r text < hello.txt && ")},
        ),
        run(tmp_path / "honest", [answer(f"{change}; echo Hello > hello.txt\n"), *done], name="honest"),
    )
    assert (idle.outcome, idle.reward) == (Outcome.COMPLETED, 0.0), idle.detail
    assert (half.outcome, half.reward) == (Outcome.UNASKED, None), half
    assert "/usr/local/bin/cmp" in half.detail
    assert (honest.outcome, honest.reward) == (Outcome.COMPLETED, 1.0), honest.detail


async def test_first_keys_reach_a_shell_that_is_ready(tmp_path: Path) -> None:
    """Zero-latency policy: the prompt was there before its first keys, and none of them is lost."""
    said = [answer("echo Hello > hello.txt\n", complete=True), DONE]
    trajectory = await run(tmp_path, said)
    assert trajectory.reward == 1.0 and "root@" in first_screen(trajectory)


def first_screen(trajectory: Trajectory) -> str:
    steps = json.loads((Path(trajectory.trial_dir) / "agent" / "trajectory.json").read_text())["steps"]
    return steps[0]["message"].rpartition("Current terminal state:")[2]


CAUSED: dict[str, tuple[list[str], dict[str, Any], Outcome, float]] = {
    "max-turns": ([answer("ls\n")], {"max_turns": 3}, Outcome.MAX_TURNS, 0.0),
    "garbage": ([SOLVE[0], "no json", ""], {"max_turns": 3}, Outcome.MAX_TURNS, 1.0),
    "context": ([SOLVE[0], "x" * 3000], SMALL_CONTEXT, Outcome.CONTEXT_LENGTH, 1.0),
    "exit": ([answer("exit\n", "ls\n"), DONE], {}, Outcome.COMPLETED, 0.0),
    "kill-tmux": ([answer("tmux kill-server\n"), DONE, DONE], {}, Outcome.COMPLETED, 0.0),
    "nul": ([answer("ab\0c \ud83d\n"), SOLVE[0], DONE], {}, Outcome.COMPLETED, 1.0),
    "cut": (["z" * 300, SOLVE[0], DONE], {"max_tokens": 200}, Outcome.COMPLETED, 1.0),
    "no-socket": ([answer("rm -rf /tmp/*\n"), DONE, DONE], {}, Outcome.COMPLETED, 0.0),
    "no-tmux": ([answer("rm -f $(which tmux)\n"), DONE, DONE], {}, Outcome.COMPLETED, 0.0),
    "kill-all": ([SOLVE[0], answer("kill -9 -1\n"), DONE], {}, Outcome.COMPLETED, 1.0),
}


@pytest.mark.parametrize("names", few(CAUSED, 5))
async def test_what_the_policy_causes_is_graded(tmp_path: Path, names: list[str]) -> None:
    async def graded(name: str) -> Trajectory:
        said, fields, *_ = CAUSED[name]
        return await run(tmp_path / name, said, name=name, **fields)

    found = await at_once(graded, names)
    assert all(one.trainable for one in found.values())
    expected = {name: tuple(CAUSED[name][2:]) for name in names}
    assert {name: (one.outcome, one.reward) for name, one in found.items()} == expected, details(found)


async def at_once(trial: Callable[[str], Awaitable[Trajectory]], names: Iterable[str]) -> dict[str, Trajectory]:
    """A trial for each name, AT_ONCE side by side."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> Trajectory:
        async with slots:
            return await trial(name)

    return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))


def details(found: dict[str, Trajectory]) -> dict[str, str]:
    return {name: one.detail for name, one in found.items()}


async def test_counts_of_a_poor_policy(tmp_path: Path) -> None:
    trajectory = await run(tmp_path, ["{", "", "w" * 100], max_turns=5, max_tokens=64)
    assert trajectory.stats["parse_failures"] == 5
    assert [turn.truncated for turn in trajectory.turns] == [False, False, True, True, True]
    assert trajectory.outcome is Outcome.MAX_TURNS and trajectory.reward == 0.0


async def test_limits_of_the_task_and_of_the_whole_trial_leave_time_to_grade(tmp_path: Path) -> None:
    said = [SOLVE[0], answer("sleep 600\n", wait=600)]
    own, whole, verified = await asyncio.gather(
        run(tmp_path / "own", said, name="own", task={"agent_timeout": 4.0}),
        run(tmp_path / "whole", said, name="whole", trial_timeout_sec=12.0),
        run(tmp_path / "late", SOLVE, name="late", task={"test": f"sleep 5\n{TEST_SH}"}, trial_timeout_sec=4.0),
    )
    assert (own.outcome, own.reward) == (whole.outcome, whole.reward) == (Outcome.AGENT_TIMEOUT, 1.0)
    assert whole.times["total"] < 60
    assert verified.reward == 1.0 and verified.times["total"] > 4, "verification is not cut off"


NO_REWARD = {
    "missing": ("true\n", "RewardFileNotFoundError"),
    "empty": (": > /logs/verifier/reward.txt\n", "RewardFileEmptyError"),
    "words": ("echo much > /logs/verifier/reward.txt\n", "VerifierOutputParseError"),
    "nan": ("echo nan > /logs/verifier/reward.txt\n", "nan"),
    "two-numbers": (
        """echo '{"speed": 1, "size": 2}' > /logs/verifier/reward.json\n""",
        "no key 'reward' but size, speed",
    ),
}


@pytest.mark.parametrize("names", few(NO_REWARD, 3))
async def test_without_a_reward_nobody_scores_zero(tmp_path: Path, names: list[str]) -> None:
    async def graded(name: str) -> Trajectory:
        return await run(tmp_path / name, SOLVE, name=name, task={"test": NO_REWARD[name][0]})

    found = await at_once(graded, names)
    nothing = dict.fromkeys(names, (Outcome.VERIFIER_ERROR, None))
    assert {name: (one.outcome, one.reward) for name, one in found.items()} == nothing, details(found)
    for name in names:
        assert NO_REWARD[name][1] in found[name].detail and "\n" not in found[name].detail


async def test_the_only_number_of_reward_json_is_the_reward(tmp_path: Path) -> None:
    test = """echo '{"score": 0.5}' > /logs/verifier/reward.json\n"""
    assert (await run(tmp_path, SOLVE, task={"test": test})).reward == 0.5


async def test_a_task_of_two_steps_is_one_trajectory_of_two_segments(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    toml = folder_of(task) / "task.toml"
    toml.write_text(
        f'multi_step_reward_strategy = "mean"\n{toml.read_text()}[[steps]]\nname="a"\n[[steps]]\nname="b"\n'
    )
    for name in ("a", "b"):
        tests = folder_of(task) / "steps" / name / "tests"
        tests.mkdir(parents=True)
        (tests.parent / "instruction.md").write_text(f"Make {name}.\n")
        (tests / "test.sh").write_text(f"#!/bin/bash\ntest -e {name}; echo $((1 - $?)) > /logs/verifier/reward.txt\n")
    host, _ = local_host([answer("touch a\n"), DONE, DONE, answer("touch c\n"), DONE, DONE])
    trajectory = await host.run(request(task, tmp_path))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 0.5)
    assert [turn.segment for turn in trajectory.turns] == [0, 0, 0, 1, 1, 1]
    assert trajectory.times["verifier"] > 0


async def test_a_sampler_that_hangs_or_fails_is_the_infrastructures(tmp_path: Path) -> None:
    def refuse(asked: Any) -> Any:
        raise ValueError("status 400")

    hanging = PolicySampler(request_timeout_sec=0.3)
    hung, refused = await asyncio.gather(
        run(tmp_path / "hangs", lambda asked: None, name="hangs", sampler=hanging),
        run(tmp_path / "fails", refuse, name="fails"),
    )
    assert (hung.outcome, hung.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert hung.detail == SAMPLING + "no answer within 0.3 s"
    assert refused.detail == SAMPLING + "ValueError: status 400" and refused.reward is None


async def test_a_task_that_harbor_refuses_is_its_own_trials_fault(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (folder_of(task) / "task.toml").write_text('[verifier]\ntimeout_sec = "soon"\n')
    host, _ = local_host(SOLVE)
    trajectory = await host.run(request(task, tmp_path))
    assert trajectory.outcome is Outcome.INFRASTRUCTURE_ERROR and trajectory.detail.startswith("task hello: ")


async def test_a_capability_that_docker_does_not_know_stops_the_run_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^environment_kwargs.cap_add=NET_ROW: Docker refuses it: [^\n]*$"):
        await run(tmp_path, SOLVE, environment_kwargs={"cap_add": "NET_ROW"})


async def test_a_bug_in_the_environment_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harbortrainer.venues.harbor.terminal.START_LIMIT_SEC", "5")
    with pytest.raises(RuntimeError, match="a bug in harbortrainer ended a trial"):
        await run(tmp_path, SOLVE)


async def test_an_image_that_does_not_build_is_the_infrastructures(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (folder_of(task) / "environment" / "Dockerfile").write_text("FROM harbortrainer/base:bookworm\nRUN false\n")
    host, _ = local_host(SOLVE)
    trajectory = await host.run(request(task, tmp_path))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)


async def test_a_cancelled_trial_leaves_no_container_and_no_request(tmp_path: Path) -> None:
    host, client = local_host(lambda asked: None)
    running = asyncio.create_task(host.run(request(make_task(tmp_path), tmp_path)))
    async with asyncio.timeout(600):
        while not client.requests:  # noqa: ASYNC110 - the fake client has no event for it
            await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(host.parts.sampler._in_flight) == 1  # drained by the trainer before it trains
    stored = json.loads((tmp_path / "trials" / "s000000-p00-g00" / "result.json").read_text())
    assert stored["exception_info"]["exception_type"] == "CancelledError"


async def test_endless_output_neither_slows_the_turns_nor_fills_the_disk(tmp_path: Path) -> None:
    said = [answer("yes | head -c 200000000\n", wait=3.0), *[answer("", wait=0.1)] * 3, DONE]
    trajectory = await run(tmp_path, said, max_turns=6)
    assert trajectory.outcome is Outcome.COMPLETED
    assert all(len(turn.new_tokens_T) < 12_000 for turn in trajectory.turns)
    files = [path for path in Path(trajectory.trial_dir).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000


@pytest.mark.parametrize(
    ("toml", "extra"),
    first(2, [(SEPARATE, {}), (EXCLUDING, {}), (SEPARATE, COMPOSE)]),
    ids=["engine", "exclude", "compose"],
)
async def test_work_that_is_lost_with_its_container_is_not_graded_by_a_separate_verifier(
    tmp_path: Path, toml: str, extra: dict[str, str]
) -> None:
    """Harbor collects what it can: without this the verifier would find nothing, and the reward would be 0."""
    path = write_task(tmp_path / "separate", toml=toml, files=VERIFIER | extra)
    task, lost = Task(path.name, path, digest(path)), list[str]()

    async def lost_after_its_agent(config: Any) -> Any:
        async def lose(_: object) -> None:
            environment = trial.agent_environment
            if isinstance(environment, DockerEngineEnvironment):
                lost.append(environment.container)
            else:
                mine = {"label": [f"com.docker.compose.project={environment.session_id}", MAIN_OF_COMPOSE]}
                lost.extend(one["Id"] for one in await asyncio.to_thread(engine().containers, filters=mine))
            assert len(lost) == 1
            await asyncio.to_thread(cleaning.remove_container, lost[-1])

        trial = await new_trial(config)
        trial.add_hook(TrialEvent.AGENT_END, lose)
        return trial

    host, _ = local_host(SOLVE)
    kept, _ = local_host(["no JSON", DONE, DONE])
    trajectory, nothing = await asyncio.gather(
        replace(host, new_trial=lost_after_its_agent).run(request(task, tmp_path, NAME)),
        kept.run(request(task, tmp_path, "s000000-p00-g01")),
    )
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert "the container of the agent or its daemon went away: " in trajectory.detail
    assert (nothing.outcome, nothing.reward) == (Outcome.COMPLETED, 0.0), "it made no artifact, which is no fault"
