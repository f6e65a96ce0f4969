"""A task whose test trusts what a policy leaves: each attack that earns is named; bundled tasks are not accused."""

import shutil
from pathlib import Path

import pytest

from harbortrainer.qualify.arguments import CheckArgs
from harbortrainer.qualify.check import qualify_all
from harbortrainer.qualify.findings import Severity
from tests.conftest import ROOT
from tests.support import system_attacks
from tests.support.task_folder import write_task

pytestmark = pytest.mark.usefixtures("docker_ready")
PLACES = "RUN mkdir /app/project && echo /app/project > /opt/where\nCOPY run.py /app/tool/run.py\n"
CHECK = 'import sys\nsys.path.insert(0, "/app")\nfrom work import double\nassert double(4) == 8\n'
RUNNER = 'import json, sys\nsys.exit(json.load(open("/app/out.json")) != {"a": 1})\n'
# Four ways to pass, of which one runs what the solution writes.
TEST = """{
bash work.sh ||
python3 /tests/check.py ||
python3 tool/run.py ||
(cd "$(cat /opt/where)" && pytest /tests/test_outputs.py)
} && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
FILES = {f"environment/{name}": text for name, text in system_attacks.FILES.items()}
FILES |= {"tests/test_outputs.py": system_attacks.TEST_OUTPUTS, "tests/check.py": CHECK, "environment/run.py": RUNNER}
EARN = {"hack: empty work": Severity.ERROR}
SOLVE = "echo Hello > hello.txt; echo 'grep -qx Hello hello.txt' > work.sh\n"


@pytest.mark.nightly
async def test_the_attacks_that_earn_are_named_and_bundled_tasks_are_not_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weak = write_task(
        tmp_path / "weak", dockerfile=system_attacks.DOCKERFILE + PLACES, solve=SOLVE, test=TEST, files=FILES
    )
    bundled = [tmp_path / "permissions-1", tmp_path / "config-ini-to-json"]
    for task, source in zip(bundled, ("quickstart", "terminal-basics"), strict=True):
        shutil.copytree(ROOT / "datasets" / source / task.name, task)
    args = CheckArgs(dirs=(str(tmp_path),), n_oracle=1, n_parallel=4)
    found, *clean = await qualify_all([weak, *bundled], args)
    assert {one.kind: one.level for one in found.findings} == EARN
    assert found.verdict == "bad"
    assert [one for report in clean for one in report.findings if one.level is not Severity.NOTE] == []
    assert "weak: bad; hack: empty work" in capsys.readouterr().err
