"""Agents for containers in real trials: refusals, a trial with a network, the relay, the doctor.

Endings: test_agent_endings.py.
"""

import asyncio
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harbortrainer.bundled.agents import session as agent_session
from harbortrainer.bundled.agents.address import MOUNT, PORT, PYTHONS
from harbortrainer.bundled.agents.listener import listener_problem
from harbortrainer.bundled.agents.relay import Relay
from harbortrainer.errors import EnvironmentFault, UserError
from harbortrainer.learning.trajectory import Outcome
from harbortrainer.learning.treatment import UNFIT
from tests.conftest import ROOT
from tests.support.agent_endings import KILL, RUN, TEST, run, solves
from tests.support.agent_shells import HELLO, PACK, WORK, call, script
from tests.support.docker_parts import started, write_task
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.tiers import first

pytestmark = [
    pytest.mark.skipif(not (PACK / "bin").is_dir(), reason="scripts/setup.sh --agents makes the programs"),
    pytest.mark.usefixtures("nothing_left"),
]


@pytest.mark.nightly
async def test_an_agent_is_answered_in_a_trial_with_a_network_too(tmp_path: Path) -> None:
    ended = await run(tmp_path, "mini-swe-agent", lambda live: script(live.agent, [HELLO]), network="public")
    trajectory = ended.trajectory
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert len(trajectory.turns) == 2


async def test_a_program_that_is_nowhere_stops_the_run_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its image has no program codex; set agents_dir=FOLDER"):
        await run(tmp_path, "codex", lambda live: ["never"], agents_dir=None)


@pytest.mark.parametrize("agent", first(1, ["codex", "mini-swe-agent"]))
async def test_each_step_of_a_task_is_a_session_of_the_agent_with_its_own_turns(tmp_path: Path, agent: str) -> None:
    """The first step ends at max_turns. Between the steps the endpoint is closed, which TEST looks at."""
    said = [call(agent, HELLO), call(agent, HELLO), *script(agent, [HELLO])]
    ended = await run(tmp_path, agent, lambda live: said, steps=[TEST, TEST], max_turns=2)
    trajectory = ended.trajectory
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert [turn.segment for turn in trajectory.turns] == [0, 0, 1, 1]
    assert ended.stat("wire_foreign") == 0 and ended.stat("wire_tokens_per_unique_token") == 1.0
    second = ended.client.requests[2].prompt_T
    text = chat_of(QWEN_TOOLS).tokenizer.decode(second)
    assert "step 1." in text and "step 0." not in text and second == list(trajectory.turns[2].new_tokens_T)


@pytest.mark.nightly
async def test_a_policy_that_takes_the_endpoints_port_between_steps_loses_its_trial_only(tmp_path: Path) -> None:
    """Its program waits until the first step's endpoint is closed. The work of both steps is graded."""
    program = f"""import socket, time
while True:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(("127.0.0.1", {PORT}))
        taken.listen()
        time.sleep(1000)
    except OSError:
        taken.close()
        time.sleep(0.001)
"""
    take = f"setsid {PYTHONS[0]} -c {shlex.quote(program)} >/dev/null 2>&1 </dev/null & sleep 1"
    said = [call("mini-swe-agent", take), *script("mini-swe-agent", [])]
    ended = await run(tmp_path, "mini-swe-agent", lambda live: said, steps=["echo 1 > /logs/verifier/reward.txt\n"] * 2)
    trajectory = ended.trajectory
    assert (trajectory.outcome, trajectory.reward) == (Outcome.POLICY_ERROR, 1.0)
    assert f"cannot listen at port {PORT}" in trajectory.detail and "Address already in use" in trajectory.detail


@pytest.mark.nightly
async def test_a_policy_that_deletes_the_relays_python_between_steps_loses_its_trial_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that is not root, a Python that is the image's alone: the run used to end with "set agents_dir"."""
    python = "/app/python"
    monkeypatch.setattr(agent_session, "listener_problem", lambda: "not root")
    monkeypatch.setattr(agent_session, "PYTHONS", (python,))
    said = [call("mini-swe-agent", f"rm {python}"), *script("mini-swe-agent", [])]
    steps, image = ["echo 1 > /logs/verifier/reward.txt\n"] * 2, f"RUN ln -s {PYTHONS[0]} {python}\n"
    ended = await run(tmp_path, "mini-swe-agent", lambda live: said, steps=steps, image=image)
    trajectory = ended.trajectory
    assert (trajectory.outcome, trajectory.reward) == (Outcome.POLICY_ERROR, 1.0)
    assert "has no python3" in trajectory.detail and len(trajectory.turns) == 2


@pytest.mark.nightly
async def test_an_agent_whose_first_prompt_fills_half_of_the_context_samples_nothing(tmp_path: Path) -> None:
    ended = (await run(tmp_path, "mini-swe-agent", solves, context_limit=5000, max_tokens=500)).trajectory
    assert (ended.outcome, ended.turns) == (Outcome.INFRASTRUCTURE_ERROR, ())
    assert re.fullmatch(rf"{UNFIT}the prompt has \d{{4}} tokens, more than 50% of context_limit=5000", ended.detail)


@pytest.mark.nightly
async def test_a_trainer_that_is_not_root_reaches_its_agent_through_a_relay(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """This test again, as another user in the daemon's group; it may read this machine's Python wherever that is."""
    if os.geteuid() == 0:
        tmp_path.chmod(0o777)
        group = os.stat("/var/run/docker.sock").st_gid
        may = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
        user = ["setpriv", "--reuid=65534", "--regid=65534", f"--groups={group}", *may]
        options = ["-o", "addopts=", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'other'}"]
        command = [*user, sys.executable, "-m", "pytest", *options, request.node.nodeid]
        plugins = os.environ.get("DOCKER_CONFIG", str(Path.home() / ".docker"))
        own = os.environ | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "DOCKER_CONFIG": plugins}
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=own, capture_output=True, text=True)
        assert "1 passed" in done.stdout, done.stdout[-3000:]
        return
    assert listener_problem() == "this process may not open a socket in a container's network, as root may"
    ended = await run(tmp_path, "mini-swe-agent", solves)
    trajectory = ended.trajectory
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert ended.stat("wire_tokens_per_unique_token") == 1.0
    assert len(trajectory.turns) == len(ended.client.requests) == len(WORK) + 1


async def test_a_relay_whose_stream_is_lost_is_a_fault_and_one_that_is_killed_is_not(tmp_path: Path) -> None:
    """Else the trial would be graded: an agent that cannot ask fails as one that the policy has killed."""
    faults: list[EnvironmentFault] = []
    programs = {"type": "bind", "source": str(PACK), "target": MOUNT, "read_only": True}

    async def never(_: socket.socket) -> None:
        raise AssertionError("no connection is made here")

    async with started(write_task(tmp_path / "hello"), RUN, mounts=[programs]) as environment:
        killed = await Relay.open(environment.container, PORT, PYTHONS, never, faults.append)
        assert killed._work is not None
        await environment.exec(KILL.replace("sleep 5", "true"), user="root")
        await asyncio.wait_for(killed._work, 60)
        assert faults == []
        await killed.close()
        lost = await Relay.open(environment.container, PORT, PYTHONS, never, faults.append)
        assert lost._work is not None
        lost._writer.transport.abort()
        await asyncio.wait_for(lost._work, 60)
        assert [str(one) for one in faults] == [
            "the agent's way to its endpoint was lost: the stream of its exec was cut"
        ]
        await lost.close()
