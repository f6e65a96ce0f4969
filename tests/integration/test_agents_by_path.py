"""Agents that are named by a class of Harbor's alone, with the programs of docs/agents.md in a pack of the user's."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.learning.trajectory import Outcome
from tests.conftest import ROOT
from tests.support import agent_shells
from tests.support.agent_endings import Live, run
from tests.support.agent_shells import HELLO, Shell, script

AIDER, PI = "harbor.agents.installed.aider:Aider", "harbor.agents.installed.pi:Pi"
PAGE = ROOT / "docs" / "agents.md"
WHOLE_FILE = "hello.txt\n```\nHello\n```\n"  # aider's form of an answer; it offers no tools


@pytest.fixture(scope="module")
def packed(docker_ready: str) -> Iterator[str]:
    """The page's own lines, in another folder than ~/agents, on a disk: 1.2 GB."""
    with_uv = f"cd {ROOT}; source scripts/lib/common.sh; source scripts/lib/python.sh; ensure_uv; "
    (block,) = re.findall(r"```bash\n(scripts/agents/pack ~/agents \S+ qwen-coder\n.*?)```", PAGE.read_text(), re.S)
    with tempfile.TemporaryDirectory(prefix="ht-agents-") as folder:
        for line in block.replace("~/agents", folder).splitlines():
            if not line.startswith("harbortrainer train"):
                command = with_uv + re.sub("^uv ", '"$UV" ', line)
                done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        yield folder


@pytest.mark.nightly
@pytest.mark.parametrize("agent", [AIDER, PI])
async def test_a_class_of_harbors_acts_with_exact_tokens(
    packed: str, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(agent_shells.AGENTS, PI, Shell("bash", "command", 0))

    def says(live: Live) -> Any:
        live.beside = lambda _: WHOLE_FILE
        return script(PI, [HELLO])

    own: dict[str, Any] = {"agent_kwargs": {"model_api": "openai-completions"}} if agent == PI else {}
    ended = await run(tmp_path, agent, says, agents_dir=packed, **own)
    trajectory = ended.trajectory
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert ended.stat("wire_foreign") == 0 and ended.stat("wire_tokens_per_unique_token") == 1.0
