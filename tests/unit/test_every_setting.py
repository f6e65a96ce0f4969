"""No setting silently does nothing: each one changes what a run does outside, or is refused with a message."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harbortrainer.config import FIELDS, Config
from tests.support.measured import write_measured
from tests.support.recorded_run import recorded_run
from tests.support.small_settings import BASE, MORE, TASKS, another, copy_tasks, write_prices
from tests.support.taxonomy import judge_file
from tests.support.tiers import first, spread

type Run = Callable[..., Awaitable[list[str]]]

STEPS = ("tasks_dir=MORE",)
SPLIT = (*STEPS, "eval_split=0.25")
SUBSTEPS = ("batch_size=2", "num_substeps=2")
PPO = ("loss_fn=ppo",)
LONG = ("n_epochs=3",)
GROUP = ("group_size=4",)

OWN = Path(__file__).parents[1] / "support" / "own_functions.py"
# Only for a field whose value cannot be made up from its default, or that another setting must uncover:
# field -> (value that differs from the base run's, what both runs are given besides)
SPECIAL: dict[str, tuple[str, tuple[str, ...]]] = {
    "skyrl_tx_url": ("http://elsewhere:1", ()),
    "init_from": ("tinker://m/weights/state", ()),
    "kl_reference": ("tinker://t/weights/state-9", ("kl_penalty_coef=0.1",)),
    "tinker_base_url": ("http://cloud:1", ("backend=tinker", "skyrl_tx_url=None", "context_limit=30000")),
    "model_name": ("models/two", ()),
    "advantage": (f"{OWN}:squared", ()),
    "reward": (f"{OWN}:by_member", ()),
    "loss": (f"{OWN}:importance_sampling", ()),
    "user": ("base", ()),
    "judge": ("JUDGE", ()),
    "agent": ("codex", ()),
    "agent_kwargs": (".max_tokens=9", ()),
    "agents_dir": ("nowhere", ()),
    "hosts": ("ray", ()),
    "images": ("no-registry", ()),
    "base_images": ("nowhere", ()),
    "images_gb": ("20", ()),
    "tool_format": ("hermes", ("wandb_project=p",)),
    "tasks_dir": ("OTHER", ()),
    "tasks_include": ("count-1,count-2", ()),
    "tasks_exclude": ("count-1", ("tasks_dir=BROKEN",)),
    "task_weights": (".tasks=2", ()),
    "difficulty": ("NARROW", ()),
    "trial_timeout_sec": ("0", ()),
    "batch_size": ("3", STEPS),
    "max_steps": ("1", STEPS),
    "lr_schedule": ("linear", STEPS),
    "loss_norm": ("token_sum", ()),
    "eval_tasks": ("count-1,count-2", ()),
    "eval_split": ("0.5", ()),
    "allow_family_overlap": ("true", (*STEPS, "eval_split=0.5")),
    "eval_group_size": ("2", SPLIT),
    "eval_every": ("1", (*SPLIT, *LONG)),
    "n_epochs": ("2", ()),
    "family": ("(.)", SPLIT),
    "environment_type": ("daytona", ()),
    "environment_kwargs": (".pids_limit=99", ()),
    "outcome_policy": (".completed=mask", ()),
    "proactive_summarization_threshold": ("100", ("enable_summarize=true",)),
    "max_tokens": ("2", ()),
    "context_limit": ("3000", ()),
    "warmup_steps": ("2", ()),
    "dppo": ("kl,0.1", ("loss_fn=dppo",)),
    "clip_thresholds": ("0.5,1.2", PPO),
    "max_trials": ("5", STEPS),
    "max_usd": ("1e-9", ("prices=PRICES",)),
    "prices": ("nowhere.json", ()),
    "logs_dir": ("OTHER_LOGS", ()),
    "run_name": ("other", ()),
    "resume": ("nowhere", ()),
    "save_every": ("1", LONG),
    "keep_checkpoints": ("1", ("save_every=1", *LONG)),
    "wandb_project": ("p", ()),
    "wandb_name": ("n", ("wandb_project=p",)),
}


def change(name: str) -> tuple[str, tuple[str, ...]]:
    """`name=value` that differs from the base run's, and what both runs are given besides."""
    value, besides = SPECIAL.get(name) or (another(Config, name, BASE), ())
    return (f"{name}{value}" if value.startswith(".") else f"{name}={value}"), besides


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("walk")
    broken = copy_tasks(root / "broken", TASKS)
    Path(broken, "count-1", "task.toml").write_text("version = ")
    tasks = Path(copy_tasks(root / "tasks", TASKS))
    return {
        "TASKS": str(tasks),
        "MORE": copy_tasks(root / "more", MORE),
        "OTHER": copy_tasks(root / "other", MORE[:2]),
        "BROKEN": broken,
        "JUDGE": judge_file(),
        "PRICES": write_prices(root / "prices.json"),
        "MEASURED": write_measured(root / "measured.json", {tasks / "count-1": 0.5, tasks / "create-1": 0.8}),
        "NARROW": write_measured(root / "narrow.json", {tasks / "count-1": 0.5, tasks / "create-1": 1.0}),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every run of this module works: two runs differ by what they do, never by their paths."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run(places: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Events of a run with the base arguments and these, and the folders it made."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setenv("DAYTONA_API_KEY", "d-x")
    monkeypatch.setenv("KEY", "k")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    async def events(*changes: str) -> list[str]:
        arguments = dict(change.split("=", 1) for change in (*BASE, *changes))
        known = {**places, "LOGS": str(folder / "logs"), "OTHER_LOGS": str(folder / "elsewhere")}
        happened = await recorded_run([f"{field}={known.get(v, v)}" for field, v in arguments.items()])
        made = [f"made {path.parent.relative_to(folder)}" for path in folder.rglob("config.json")]
        for left in folder.iterdir():
            shutil.rmtree(left)
        return [*happened, *sorted(made)]

    return events


@pytest.fixture(scope="module")
def bases() -> dict[tuple[str, ...], list[str]]:
    """Events of the base runs, by what they are given besides."""
    return {}


@pytest.fixture
def base(bases: dict[tuple[str, ...], list[str]], run: Run) -> Run:
    """`run`, once for the same arguments."""

    async def events(*besides: str) -> list[str]:
        if besides not in bases:
            bases[besides] = await run(*besides)
        return bases[besides]

    return events


# where chance would be seen, first: evaluations beside batches, failing trials
CHANCY = [(*SPLIT, *LONG), GROUP, ()]
BESIDES = [*CHANCY, *sorted({change(name)[1] for name in FIELDS}.difference(CHANCY))]


@pytest.mark.parametrize(("besides",), first(1, [(besides,) for besides in BESIDES]))
async def test_the_same_settings_do_the_same(besides: tuple[str, ...], base: Run, run: Run) -> None:
    """Images are made beside each other: their order is chance."""
    both = await run(*besides), await base(*besides)
    again, before = ([one for one in events if '"kind": "images"' not in one] for events in both)
    assert again == before


@pytest.mark.parametrize("name", spread(FIELDS, 20))
async def test_a_setting_has_an_effect_or_is_refused(name: str, base: Run, run: Run) -> None:
    argument, besides = change(name)
    before, changed = await base(*besides), await run(*besides, argument)
    assert name == "tasks_exclude" or not any('"refused"' in event for event in before), before
    assert changed != before, f"{argument} changes nothing that leaves this process"


async def test_a_run_in_somebody_elses_environments_asks_docker_for_nothing(base: Run, run: Run) -> None:
    docker = {f'"kind": "{name}"' for name in ("docker", "images", "reap")}
    local, elsewhere = await base(), await run("environment_type=daytona")
    assert {kind for kind in docker for event in local if kind in event} == docker
    assert not {kind for kind in docker for event in elsewhere if kind in event}
