"""The Tinker cookbook's published recipes on our server: killed after a checkpoint, resumed, trained to the end."""

import re

import pytest

from tests.conftest import ROOT, free_port, run_script, succeed

SHORT = ("max_steps=8", "save_every=2")
SCRIPT = "scripts/run_cookbook_loop.sh"


@pytest.fixture
def settings(server_env: None) -> dict[str, str]:
    return {"SKYRL_TX_PORT": str(free_port()), "SESSION_TIMEOUT": "30"}


def run_recipe(name: str, settings: dict[str, str]) -> str:
    """The script's verdict on a run in which the recipe was resumed at its first checkpoint."""
    output = succeed(SCRIPT, name, *SHORT, env=settings, timeout_sec=900)
    verdict = re.search(rf"^{name}: 8 batches, killed after \d+, resumed at [246]; (.*)$", output, re.MULTILINE)
    assert verdict, output
    assert (ROOT / ".state" / "cookbook" / name / "checkpoints.jsonl").read_text().count('"final"') == 1
    return verdict[1]


def test_rl_loop_trains_where_rewards_differ(settings: dict[str, str]) -> None:
    trained = re.match(r"trained in (\d) of 8 batches", run_recipe("rl_loop", settings))
    assert trained
    assert int(trained[1]) >= 6  # the script's own bar: groups of equal rewards teach nothing


def test_sl_loop_learns_and_goes_on_where_it_was(settings: dict[str, str]) -> None:
    verdict = run_recipe("sl_loop", settings)
    losses = re.match(
        r"loss ([\d.]+) -> ([\d.]+); (\d+) batches done twice, losses apart by at most ([\d.e-]+)", verdict
    )
    assert losses
    assert float(losses[2]) < float(losses[1])
    assert int(losses[3]) >= 1


def test_a_recipe_that_fails_is_shown(settings: dict[str, str]) -> None:
    nowhere = settings | {"SKYRL_TX_URL": "http://127.0.0.1:9"}
    failed = run_script(SCRIPT, "sl_loop", "model_name=nobody/knows-it", env=nowhere, timeout_sec=900)
    assert failed.returncode == 1
    assert "error: sl_loop: it ended with status 1 before a checkpoint" in failed.stdout
    assert re.search(r"its whole output: \S+/sl_loop.log", failed.stdout)


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
