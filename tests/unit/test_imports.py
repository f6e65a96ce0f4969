"""What a process imports for what it does. A new process takes a second: one does everything, the lightest first."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.tau_parts import needs_tau2

pytestmark = pytest.mark.nightly  # processes of their own, of seconds
WEB = {"litellm", "starlette", "uvicorn", "openai", "anthropic", "harbortrainer.model_api.service"}
PLANNED = ["backend=skyrl-tx", "skyrl_tx_url=http://127.0.0.1:9", "tasks_dir=datasets/quickstart", "--dry-run"]
READ_PLAN = """
from harbortrainer.cli.main import main
from harbortrainer.docker.checks.host import DockerHost
DockerHost.check = DockerHost.needs = staticmethod(lambda *_: [])  # what a daemon says is not asked here
"""
PROGRAM = """
import json, os, pathlib, sys
seen = {}
from harbortrainer.cli.main import TABLE, load, main
main(["--help"])
for command in TABLE.values(): load(command.kind), command.read and load(command.read)
seen["commands"] = [*sys.modules]
assert main(["train", "--help"]) == 0
seen["help"] = [*sys.modules]
import harbortrainer.venues.harbor.room, harbortrainer.venues.harbor.terminus
seen["terminus"] = [*sys.modules]
import harbortrainer.training.session, harbortrainer.rollout.rollouts, harbortrainer.venues.harbor.venue
import harbortrainer.venues.harbor.trial, harbortrainer.model_api.exchange, harbortrainer.model_api.gate
seen["agents"] = [*sys.modules]
from harbortrainer.tasks.sources import find_sources, load_sources
assert load_sources(find_sources("datasets/quickstart"))
seen["folders"] = [*sys.modules]
pathlib.Path(".env").write_text("FROM_DOTENV=1")  # a command reads it, and the domains must not
if "tau" in sys.argv:
    assert len(load_sources(find_sources("tau:mock"))) == 9
    seen["tau"] = [*sys.modules]
assert "FROM_DOTENV" not in os.environ
READ_PLAN
import importlib.metadata
importlib.metadata.packages_distributions = None  # which would look at every installed package
assert main(["train", *PLANNED, "model_name=models/quickstart"]) == 0
seen["plan"] = [*sys.modules]
pathlib.Path("seen.json").write_text(json.dumps(seen))
""".replace("READ_PLAN", READ_PLAN).replace("PLANNED", str(PLANNED))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("imports")
    for name in ("datasets", "models"):
        (made / name).symlink_to(ROOT / name)
    return made


def process(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def modules(folder: Path) -> dict[str, set[str]]:
    """Modules of the process after each thing; "tau" where tau2 is installed."""
    done = process(folder, PROGRAM, *([] if needs_tau2.args[0] else ["tau"]))
    assert (done.returncode, done.stderr) == (0, "")
    assert "agents_dir" in done.stdout, "the help of a run"
    return {what: set(names) for what, names in json.loads((folder / "seen.json").read_text()).items()}


def test_nothing_heavy_is_imported_before_the_words_are_right(modules: dict[str, set[str]]) -> None:
    assert modules["commands"].isdisjoint({"harbor", "tinker", "docker", "transformers", "wandb"})


def test_the_help_of_a_run_needs_neither_litellm_nor_a_web_server(modules: dict[str, set[str]]) -> None:
    assert modules["help"].isdisjoint({*WEB, "harbor"})


def test_terminus_needs_neither_litellm_nor_a_web_server(modules: dict[str, set[str]]) -> None:
    assert modules["terminus"].isdisjoint(WEB)
    assert "harbortrainer.model_api.exchange" in modules["terminus"]


def test_runs_of_agents_in_this_process_import_no_web_server(modules: dict[str, set[str]]) -> None:
    assert modules["agents"].isdisjoint(WEB)


@needs_tau2
def test_tau2_is_imported_only_for_its_tasks_and_quietly(modules: dict[str, set[str]]) -> None:
    assert modules["folders"].isdisjoint({"tau2", "loguru"})
    assert "tau2" in modules["tau"]
    assert modules["tau"].isdisjoint({"litellm", "pandas"}), "the domains need neither"


PLAN = f"""
import sys
{READ_PLAN}
assert main(["train", *{PLANNED}, "model_name=models/quickstart"]) == 0
print({{"tinker.types", "transformers"}} & {{*sys.modules}})
"""


def test_a_plan_of_a_known_model_imports_neither_the_sdk_nor_transformers(
    folder: Path, modules: dict[str, set[str]]
) -> None:
    """An earlier process has planned with this model."""
    assert "transformers" in modules["plan"]
    assert process(folder, PLAN).stdout.splitlines()[-1] == "set()"
