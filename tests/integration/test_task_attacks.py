"""Tasks whose tests trust what a policy leaves: the attack that earns is named; bundled tasks are not accused."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.qualify.arguments import CheckArgs
from harbortrainer.qualify.check import qualify_all
from harbortrainer.qualify.findings import Level
from tests.conftest import ROOT
from tests.support import system_attacks
from tests.support.task_folder import write_task

pytestmark = pytest.mark.usefixtures("docker_ready")
REWARD = "[ $? -eq 0 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
CHECK = 'import sys\nsys.path.insert(0, "/app")\nfrom work import double\nassert double(4) == 8\n'
RUNNER = 'import json, sys\nsys.exit(json.load(open("/app/out.json")) != {"a": 1})\n'
# name -> (what is found, its level, the task)
WEAK: dict[str, tuple[str, Level, dict[str, Any]]] = {
    "runs-work": (
        "hack: empty work",
        Level.ERROR,
        {"solve": "echo 'test -e work.sh' > work.sh\n", "test": f"bash work.sh\n{REWARD}"},
    ),
    "imports-work": (
        "hack: imported work",
        Level.WARNING,
        {
            "dockerfile": f"{system_attacks.BASE}WORKDIR /app\n",
            "solve": "printf 'def double(x):\\n    return 2 * x\\n' > work.py\n",
            "test": f"python3 /tests/check.py\n{REWARD}",
            "files": {"tests/check.py": CHECK},
        },
    ),
    "module-beside": (
        "hack: shadowed modules",
        Level.ERROR,
        {
            "dockerfile": f"{system_attacks.BASE}WORKDIR /app\nCOPY run.py /app/tool/run.py\n",
            "files": {"environment/run.py": RUNNER},
            "solve": "echo '{\"a\": 1}' > out.json\n",
            "test": f"cd /app/tool/.. && python3 tool/run.py\n{REWARD}",
        },
    ),
    "conftest": (
        "hack: pytest settings",
        Level.ERROR,
        {
            "dockerfile": system_attacks.DOCKERFILE + "RUN mkdir /app/project && echo /app/project > /opt/where\n",
            "files": {f"environment/{name}": text for name, text in system_attacks.FILES.items()}
            | {"tests/test_outputs.py": system_attacks.TEST_OUTPUTS},
            "test": f'cd "$(cat /opt/where)" && pytest /tests/test_outputs.py\n{REWARD}',
        },
    ),
}


async def test_the_attack_that_earns_is_named_and_bundled_tasks_are_not_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, (_, _, parts) in WEAK.items():
        write_task(tmp_path / name, **parts)
    bundled = [tmp_path / "count-1", tmp_path / "permissions-1", tmp_path / "config-ini-to-json"]
    for task, source in zip(bundled, ("quickstart", "quickstart", "terminal-basics"), strict=True):
        shutil.copytree(ROOT / "datasets" / source / task.name, task)
    weak = [tmp_path / name for name in WEAK]
    args = CheckArgs(dirs=(str(tmp_path),), n_oracle=1, n_parallel=4)
    reports = {report.name: report for report in await qualify_all([*weak, *bundled], args)}
    for name, (kind, level, _) in WEAK.items():
        assert (kind, level) in [(one.kind, one.level) for one in reports[name].findings], reports[name]
    assert reports["imports-work"].verdict == "good" and reports["runs-work"].verdict == "bad"
    for task in bundled:
        assert [one for one in reports[task.name].findings if one.level is not Level.NOTE] == []
    assert "runs-work: bad; hack: empty work" in capsys.readouterr().err
