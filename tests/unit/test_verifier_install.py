"""A verifier that could not install what it needs is told from a policy that failed, and a good one never accused."""

from pathlib import Path

import pytest

from harbortrainer.qualify.findings import judge_oracle
from harbortrainer.qualify.trials import QualificationTrial
from harbortrainer.venues.harbor.install import failed_install, fetching
from tests.support.shapes import INSTALLING
from tests.support.task_folder import write_task

TB = INSTALLING.format(address="https://astral.sh")
NO_CURL = """E: Unable to locate package curl
/tests/test.sh: line 4: curl: command not found
/tests/test.sh: line 5: /root/.local/bin/env: No such file or directory
/tests/test.sh: line 10: uvx: command not found
"""
NO_UV = """curl is already the newest version (7.88.1-10+deb12u15).
curl: (6) Could not resolve host: astral.sh
/tests/test.sh: line 5: /root/.local/bin/env: No such file or directory
/tests/test.sh: line 10: uvx: command not found
"""
NO_INDEX = """error: Request failed after 3 retries in 4.4s
  cause: Failed to fetch: https://index.example/simple/pytest/
"""
PIP = "pip install pytest==8.4.1\npython3 -m pytest /tests/test_outputs.py && r=1 || r=0\n"
NO_PIP = """WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/pytest/
ERROR: Could not find a version that satisfies the requirement pytest==8.4.1 (from versions: none)
/usr/bin/python3: No module named pytest
"""
DASH = "E: Failed to fetch http://mirror.example/x  Could not connect\n/tests/test.sh: 3: jq: not found\n"
RAN = "====== test session starts ======\nFAILED /tests/test_outputs.py::test_a\n== 1 failed in 0.1s ==\n"


def trial(folder: Path, test: str, output: str) -> str:
    task = write_task(folder / "task", test=test)
    (folder / "trial" / "verifier").mkdir(parents=True)
    (folder / "trial" / "verifier" / "test-stdout.txt").write_text(output)
    return failed_install(task, folder / "trial")


@pytest.mark.parametrize(
    ("test", "output", "cause"),
    [
        (TB, NO_CURL, "could not install curl: E: Unable to locate package curl"),
        (TB, NO_UV, "could not install uvx: curl: (6) Could not resolve host: astral.sh"),
        (TB, NO_INDEX, "could not install uvx: error: Request failed after 3 retries"),
        (PIP, NO_PIP, "could not install pytest: WARNING: Retrying"),
        ("apt-get install -y \\\n  jq\njq . x\n", DASH, "could not install jq: E: Failed to fetch"),
        (TB, "noise\n" * 10**5 + NO_UV, "could not install uvx"),
        (TB, NO_UV + "noise\n" * 10**5, "could not install uvx"),
    ],
)
def test_what_could_not_be_installed_is_named(tmp_path: Path, test: str, output: str, cause: str) -> None:
    assert cause in trial(tmp_path, test, output)


@pytest.mark.parametrize("place", ["agent", "artifacts", "steps/one/agent"])
def test_what_the_agent_left_in_its_logs_is_no_output_of_the_verifier(tmp_path: Path, place: str) -> None:
    forged = tmp_path / "trial" / place / "verifier"
    forged.mkdir(parents=True)
    (forged / "test-stdout.txt").write_text(NO_UV)
    assert trial(tmp_path, TB, RAN) == ""


def test_the_output_of_a_steps_verifier_counts(tmp_path: Path) -> None:
    folder = tmp_path / "trial" / "steps" / "one" / "verifier"
    folder.mkdir(parents=True)
    (folder / "test-stdout.txt").write_text(NO_UV)
    assert "could not install uvx" in trial(tmp_path, TB, RAN)


@pytest.mark.parametrize(
    ("test", "output"),
    [
        (TB, RAN),
        (TB, NO_UV.replace("line 10: uvx: command not found", "") + RAN),  # an older uv was there
        (TB, NO_UV + RAN),
        (TB, "curl: (6) Could not resolve host: astral.sh\nAssertionError: hello.txt is missing\n"),
        (TB, "/tests/test.sh: line 7: uvx: command not found\n"),  # no installer failed
        (TB, "curl: (6) Could not resolve host: x\n/tests/test.sh: line 9: mytool: command not found\n"),
        ("curl -s http://localhost:80/ || r=0\n", "curl: (7) Failed to connect to localhost port 80\n"),
        (
            f"{TB}curl -sS http://127.0.0.1:8080/\n",
            "curl: (7) Failed to connect to 127.0.0.1 port 8080\n/tests/test.sh: line 9: uvx: command not found\n",
        ),
        ("mytool > out; [ -s out ] && r=1\n", NO_CURL),  # forged by what the agent wrote: nothing is installed here
        ("pip install requests && mytool\n", NO_PIP.replace("pytest", "mytool")),
        (TB, ""),
    ],
)
def test_a_verifier_that_did_its_work_is_not_accused(tmp_path: Path, test: str, output: str) -> None:
    assert trial(tmp_path, test, output) == ""


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("curl -s http://localhost:8080/x\n", []),
        ("curl -s \\\n --max-time 3 http://127.0.0.1:80/\n", []),
        ('base=http://127.0.0.1:9000\ncurl -s "$base/x"\n', []),
        ('ask() { curl -s --noproxy "*" "$@"; }\n', []),
        ("curl -s https://example.org/x http://localhost/\n", ["curl"]),
        ("curl http://localhost/ && wget https://example.org/x\n", ["curl", "wget"]),
        ('curl -s "$1"\n', ["curl"]),
        ("curl http://localhost.example.org/\n", ["curl"]),
        ("apt-get -y install jq\npip install x\n", ["apt-get -y install", "pip install"]),
    ],
)
def test_talking_to_the_same_host_is_no_fetching(script: str, commands: list[str]) -> None:
    assert fetching(script) == commands


def test_qualification_names_the_network_and_not_the_oracle() -> None:
    fault = "the verifier could not install uvx: curl: (6) Could not resolve host: astral.sh"
    (found,) = judge_oracle([QualificationTrial(None, fault)])
    assert found.kind == "verifier needs network" and fault in found.detail
