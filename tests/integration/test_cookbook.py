"""The Tinker cookbook's published recipes on our server: trained to the end, two loops killed and resumed."""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from scripts.cookbook import recipes
from tests.conftest import ROOT, free_port, live_server, run_script, succeed

BATCHES = 4
SHORT = (f"max_steps={BATCHES}", "save_every=2")
SCRIPT = "scripts/run_cookbook_loop.sh"
RESUMED = r"killed after \d+, resumed at 2"


WORK = ROOT / ".state" / "cookbook"
MODEL, PLAYER = "Qwen/Qwen3-8B", "Qwen/Qwen3.5-9B"
ENVIRONMENT = "scripts/cookbook/environment.sh"
RECIPES = "scripts/run_cookbook_recipes.sh"
BY_DAY = ("math_rl_stream",)


@pytest.fixture(scope="module")
def served(server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Names a server of the recipes' model, which the script then does not start itself."""
    succeed(sys.executable, "-m", "scripts.cookbook.make_hub", WORK)
    hub = {"HF_HOME": str(WORK / "hub"), "HF_HUB_OFFLINE": "1", "MAX_LORA_RANK": "8"}
    with live_server(Path(MODEL), tmp_path_factory.mktemp("cookbook"), **hub) as url:
        yield {"SKYRL_TX_URL": url}


def verdict(how: str, *command: str, settings: dict[str, str]) -> str:
    """What the script says of a recipe that did what it should; `how`: the pattern of its invocations."""
    name = command[0]
    output = succeed(SCRIPT, *command, *SHORT, env=settings, timeout_sec=3600)
    found = re.search(rf"^{name}: {BATCHES} batches, {how}; (.*)$", output, re.MULTILINE)
    assert found, output
    assert (WORK / name / "checkpoints.jsonl").read_text().count('"final"') == 1
    return found[1]


@pytest.mark.nightly
def test_rl_loop_trains_where_rewards_differ(served: dict[str, str]) -> None:
    trained = re.match(rf"trained in (\d) of {BATCHES} batches", verdict(RESUMED, "rl_loop", settings=served))
    assert trained
    assert int(trained[1]) >= 3  # the script's own bar: groups of equal rewards teach nothing


@pytest.mark.nightly
def test_sl_loop_learns(served: dict[str, str]) -> None:
    assert verdict("in one go", "sl_loop", "--straight", settings=served).startswith("loss ")


@pytest.mark.nightly
def test_sl_loop_goes_on_where_it_was_on_a_server_of_the_scripts(server_env: None) -> None:
    own = {"SKYRL_TX_PORT": str(free_port()), "SESSION_TIMEOUT": "30"}
    losses = re.match(
        r"loss ([\d.]+) -> ([\d.]+); (\d+) batches done twice, losses apart by at most ([\d.e-]+)",
        verdict(RESUMED, "sl_loop", settings=own),
    )
    assert losses
    assert float(losses[2]) < float(losses[1])
    assert int(losses[3]) >= 1


@pytest.mark.nightly
def test_a_recipe_that_fails_is_shown() -> None:
    nowhere = {"SKYRL_TX_URL": "http://127.0.0.1:9"}
    failed = run_script(SCRIPT, "sl_loop", "model_name=nobody/knows-it", env=nowhere, timeout_sec=900)
    assert failed.returncode == 1
    assert "error: sl_loop: it ended with status 1 before a checkpoint" in failed.stdout
    assert re.search(r"its whole output: \S+/sl_loop.log", failed.stdout)


def did(output: str, names: Iterable[str]) -> None:
    """The script's line of each recipe."""
    lines = [line.split(":")[0] for line in output.splitlines() if re.search(r": .*(steps|rows|fault).*; \d+ s$", line)]
    assert sorted(lines) == sorted(names), output


@pytest.mark.nightly
def test_a_recipe_comes_to_its_end(server_env: None, tmp_path: Path) -> None:
    install = (
        f"source scripts/lib/common.sh && source scripts/lib/python.sh && source {ENVIRONMENT} && ready_cookbook {WORK}"
    )
    succeed("bash", "-c", install)  # before the server, which finds its model there
    hub = {"HF_HOME": str(WORK / "hub"), "MAX_LORA_RANK": "128"}
    with live_server(Path(PLAYER), tmp_path, **hub) as url:
        did(succeed(RECIPES, *BY_DAY, env={"SKYRL_TX_URL": url}), BY_DAY)
    log = (tmp_path / "server.log").read_text()
    assert not re.findall(r"Traceback|Cleaning up failed", log), log[-5000:]


@pytest.mark.nightly
def test_every_recipe_comes_to_its_end(server_env: None, docker_ready: str) -> None:
    did(succeed(RECIPES, env={"SKYRL_TX_PORT": str(free_port())}, timeout_sec=4 * 3600), recipes.RECIPES)


def test_refuses_an_unknown_recipe() -> None:
    refused = run_script(RECIPES, "chat_sl", "chess")
    assert refused.returncode == 1
    assert "error: chess: no recipe; there are math_rl, " in refused.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dpo",), "usage: scripts/run_cookbook_loop.sh rl_loop|sl_loop"),
        (("sl_loop", "log_path=/tmp/x"), "log_path=/tmp/x: set by this script"),
        (("sl_loop", "batch_size"), "'batch_size' is not key=value"),
    ],
)
def test_refuses_what_it_cannot_run(arguments: tuple[str, ...], message: str) -> None:
    refused = run_script(SCRIPT, *arguments)
    assert refused.returncode == 1
    assert message in refused.stdout
