"""`python -m src.serve` with a real server: clients of both APIs, and Harbor's own command line with Terminus-2."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harbortrainer.cli.main import main
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.sft.dataset import load_dataset
from harbortrainer.sft_config import SftConfig
from tests.conftest import MODEL, ROOT, free_port
from tests.support.later import Later

anthropic, openai = Later("anthropic"), Later("openai")

KEY = "a-key-of-this-test"
QUICKSTART = ROOT / "datasets" / "quickstart"
NAMES = [f"{kind}-{n}" for kind in ("append", "copy", "count", "create", "search") for n in range(1, 5)]
# Harbor names containers at random, which the shell's prompt shows to the policy: 5 of 20 rewards differed.
SAME_PROMPT = "\nRUN echo \"PS1='root@harbor:\\w# '\" >> /etc/bash.bashrc\n"
READY = re.compile(r"answers at (http://\S+)/v1 as model policy.*ready")


@dataclass(frozen=True)
class Served:
    url: str
    backend: tuple[str, str]


@pytest.fixture(scope="module")
def served(server_url: str) -> Iterator[Served]:
    """The base model, greedy."""
    backend = ("backend=skyrl-tx", f"skyrl_tx_url={server_url}")
    words = [*backend, f"model_name={MODEL}", "temperature=0", "max_tokens=256", "context_limit=4000"]
    command = [sys.executable, "-m", "src.serve", *words, f"port={free_port()}", "max_requests=4"]
    env = os.environ | {"SERVE_API_KEY": KEY, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as on:
        assert on.stdout is not None
        said = []
        for line in on.stdout:
            said.append(line)
            if found := READY.search("".join(said).replace("\n", " ")):
                break
        else:
            pytest.fail("".join(said))
        try:
            yield Served(found[1], backend)
        finally:
            on.send_signal(signal.SIGINT)
            on.communicate(timeout=60)


def test_clients_of_both_apis_get_the_policys_answers(served: Served) -> None:
    ask = [{"role": "user", "content": "Say yes."}]
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
        chat = client.chat.completions
        first = chat.create(model="policy", messages=ask, max_tokens=12)  # pyright: ignore[reportCallIssue, reportArgumentType]
        stream = chat.create(model="policy", messages=ask, max_tokens=12, stream=True)  # pyright: ignore[reportCallIssue, reportArgumentType]
        parts = [part.choices[0].delta.content or "" for part in stream if part.choices]
        assert "".join(parts) == first.choices[0].message.content, "greedy"
        assert first.usage and first.usage.completion_tokens <= 12
        said = client.responses.create(model="policy", input="Say yes.", max_output_tokens=12)
        assert said.output_text == first.choices[0].message.content
        assert [model.id for model in client.models.list()] == ["policy"]
    with anthropic.Anthropic(base_url=served.url, api_key=KEY, max_retries=0) as client:
        answer = client.messages.create(model="policy", max_tokens=12, messages=ask)  # pyright: ignore[reportArgumentType]
        assert "".join(block.text for block in answer.content if block.type == "text") == "".join(parts)
    other = openai.OpenAI(base_url=f"{served.url}/v1", api_key="another", max_retries=0)
    with other as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


@pytest.mark.nightly
def test_harbors_own_command_line_gets_the_rewards_of_an_evaluation(
    served: Served, docker_ready: str, tmp_path: Path
) -> None:
    tasks = tmp_path / "tasks"
    for name in NAMES:  # Harbor's own Docker environment refuses tasks without a network where it cannot enforce that
        shutil.copytree(QUICKSTART / name, tasks / name)
        file, recipe = tasks / name / "task.toml", tasks / name / "environment" / "Dockerfile"
        file.write_text(file.read_text().replace('network_mode = "no-network"', ""))
        recipe.write_text(recipe.read_text() + SAME_PROMPT)
    words = [str(ROOT / ".venv" / "bin" / "harbor"), "run", "-p", str(tasks), "-a", "terminus-2", "-m", "openai/policy"]
    words += [
        "--ak",
        "max_turns=3",
        "--ak",
        "enable_summarize=false",
        "-o",
        str(tmp_path / "jobs"),
        "-n",
        "2",
        "-y",
        "-q",
    ]
    env = os.environ | {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{served.url}/v1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    results = [json.loads(file.read_text()) for file in (tmp_path / "jobs").glob("*/*/result.json")]
    assert len(NAMES) == 20 and sorted(result["task_name"].split("/")[-1] for result in results) == sorted(NAMES)
    assert [result["exception_info"] for result in results] == [None] * len(NAMES)
    theirs = {r["task_name"].split("/")[-1]: r["verifier_result"]["rewards"]["reward"] for r in results}
    own = [f"model_name={MODEL}", f"tasks_dir={tasks}", "trials=1", "temperature=0"]
    own += ["max_turns=3", "max_tokens=256", "context_limit=4000", f"out={tmp_path / 'out'}"]
    assert main(["evaluate", *served.backend, *own]) == 0
    (policy,) = json.loads((tmp_path / "out" / "evaluation.json").read_text())["policies"]
    rewards = {task["name"]: task["rewards"] for task in policy["per_task"]}
    print(f"harbor run: {theirs}")
    assert rewards == {n: [theirs[n]] for n in NAMES}
    found = load_dataset(job_of(tmp_path / "jobs"), ChatTemplate.load(str(MODEL), False))
    assert sorted(one.task for one in found.train) == sorted(NAMES), "the job becomes conversations of fine-tuning"


def job_of(jobs: Path) -> SftConfig:
    return SftConfig(model_name=str(MODEL), data=(f"harbor:{jobs}",), min_reward=0.0)
