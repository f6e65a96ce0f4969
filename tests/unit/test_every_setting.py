"""No setting silently does nothing: each one changes what a run does outside, or is refused with a message."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from src.command_line import FIELDS
from tests.recorded_run import recorded_run

type Run = Callable[..., Awaitable[list[str]]]

BASE = (
    "backend=skyrl-tx",
    "skyrl_tx_url=http://here:1",
    "model_name=models/one",
    "tasks_dir=TASKS",
    "batch_size=2",
    "group_size=4",
    "logs_dir=LOGS",
    "run_name=run",
)
TASKS = ("count-1", "count-2", "create-1", "create-2")
SPLIT = ("eval_split=0.25",)
SUBSTEPS = ("batch_size=2", "num_substeps=2")
PPO = ("loss_fn=ppo",)
LONG = ("n_epochs=3",)

# field -> (value that differs from the base run's, what both runs are given besides)
CHANGED: dict[str, tuple[str, tuple[str, ...]]] = {
    "backend": ("tinker", ()),
    "skyrl_tx_url": ("http://elsewhere:1", ()),
    "tinker_base_url": ("http://cloud:1", ("backend=tinker", "context_limit=30000")),
    "model_name": ("models/two", ()),
    "lora_rank": ("4", ()),
    "tasks_dir": ("OTHER", ()),
    "tasks_registry": ("nowhere.json", ()),
    "tasks_include": ("count-1,count-2", ()),
    "tasks_exclude": ("count-*", ()),
    "task_weights.tasks": ("2", ()),
    "curriculum_band": ("0.1,0.9", ("group_size=8", "n_epochs=6")),
    "allow_broken_tasks": ("true", ("tasks_dir=BROKEN",)),
    "eval_split": ("0.5", ()),
    "eval_tasks": ("count-1,count-2", ()),
    "allow_family_overlap": ("true", ("eval_split=0.5",)),
    "eval_group_size": ("2", SPLIT),
    "eval_every": ("1", (*SPLIT, *LONG)),
    "eval_overlap": ("true", (*SPLIT, *LONG)),
    "eval_temperature": ("0.0", SPLIT),
    "batch_size": ("3", ()),
    "group_size": ("3", ()),
    "n_epochs": ("2", ()),
    "max_steps": ("1", ()),
    "seed": ("1", ()),
    "n_parallel_envs": ("3", ()),
    "n_warm_envs": ("0", ()),
    "n_parallel_builds": ("1", ()),
    "n_parallel_starts": ("1", ()),
    "n_parallel_verifiers": ("1", ()),
    "env_starts_per_sec": ("100", ()),
    "env_outage_limit_sec": ("10", ()),
    "environment_type": ("daytona", ()),
    "environment_kwargs.pids_limit": ("99", ()),
    "max_attempts": ("2", ()),
    "quarantine_after": ("2", ()),
    "outcome_policy.completed": ("mask", ()),
    "trial_timeout_sec": ("0", ()),
    "max_turns": ("7", ()),
    "max_tokens": ("2", ()),
    "temperature": ("0.5", ()),
    "context_limit": ("3000", ()),
    "command_wait": ("duration", ()),
    "enable_summarize": ("true", ()),
    "proactive_summarization_threshold": ("100", ("enable_summarize=true",)),
    "enable_thinking": ("true", ()),
    "learning_rate": ("1e-3", ()),
    "lr_schedule": ("cosine", ()),
    "warmup_steps": ("2", ()),
    "adam_beta1": ("0.8", ()),
    "adam_beta2": ("0.9", ()),
    "adam_eps": ("1e-8", ()),
    "weight_decay": ("0.1", ()),
    "grad_clip_norm": ("1.0", ()),
    "loss_fn": ("ppo", ()),
    "clip_low_threshold": ("0.5", PPO),
    "clip_high_threshold": ("3.0", PPO),
    "loss_norm": ("token_sum", ()),
    "num_substeps": ("2", ()),
    "advantage_baseline": ("leave_one_out", ()),
    "normalize_advantages_by_std": ("true", ()),
    "remove_constant_reward_groups": ("true", ()),
    "kl_penalty_coef": ("0.1", ()),
    "on_stop": ("wait", ()),
    "max_wall_seconds": ("1e6", ()),
    "max_trials": ("5", ()),
    "max_usd": ("1e-9", ("server_usd_per_hour=1e9",)),
    "max_tokens_total": ("5", ()),
    "max_container_hours": ("1e-9", ()),
    "prices": ("nowhere.json", ()),
    "server_usd_per_hour": ("1e15", ("server_usd_per_hour=1e-9", "max_usd=1e3")),
    "plan": ("true", ()),
    "plan_json": ("plan.json", ()),
    "logs_dir": ("OTHER_LOGS", ()),
    "run_name": ("other", ()),
    "resume": ("nowhere", ()),
    "server_outage_limit_sec": ("10", ()),
    "sample_timeout_sec": ("10", ()),
    "eval_timeout_sec": ("1e-9", SPLIT),
    "update_timeout_sec": ("10", ()),
    "save_timeout_sec": ("10", ()),
    "server_silence_sec": ("10", ()),
    "save_every": ("1", LONG),
    "keep_checkpoints": ("1", ("save_every=1", *LONG)),
    "keep_every": ("2", ("keep_checkpoints=1", "save_every=1", "n_epochs=6")),
    "keep_best": ("1", (*SPLIT, "keep_checkpoints=1", "save_every=1", "eval_every=1", "n_epochs=6")),
    "display": ("quiet", ()),
    "wandb_project": ("p", ()),
    "wandb_name": ("n", ("wandb_project=p",)),
}


def copy_tasks(folder: Path, names: tuple[str, ...]) -> str:
    for name in names:
        shutil.copytree(Path("datasets/quickstart") / name, folder / name)
    return str(folder)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("walk")
    broken = copy_tasks(root / "broken", TASKS)
    Path(broken, "count-1", "task.toml").write_text("version = ")
    return {
        "TASKS": copy_tasks(root / "tasks", TASKS),
        "OTHER": copy_tasks(root / "other", TASKS[:2]),
        "BROKEN": broken,
    }


def test_the_walk_covers_every_field():
    assert {name.split(".")[0] for name in CHANGED} == set(FIELDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every run of this module works: two runs differ by what they do, never by their paths."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run(places: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Events of a run with the base arguments and these, and the folders it made."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setenv("DAYTONA_API_KEY", "d-x")
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


@pytest.mark.parametrize("besides", sorted({besides for _, besides in CHANGED.values()}))
async def test_the_same_settings_do_the_same(besides: tuple[str, ...], base: Run, run: Run) -> None:
    assert await run(*besides) == await base(*besides)


@pytest.mark.parametrize("name", CHANGED)
async def test_a_setting_has_an_effect_or_is_refused(name: str, base: Run, run: Run) -> None:
    value, besides = CHANGED[name]
    before, changed = await base(*besides), await run(*besides, f"{name}={value}")
    assert name == "allow_broken_tasks" or not any('"refused"' in event for event in before), before
    assert changed != before, f"{name}={value} changes nothing that leaves this process"


async def test_a_run_in_somebody_elses_environments_asks_docker_for_nothing(base: Run, run: Run) -> None:
    docker = {f'"kind": "{name}"' for name in ("docker", "images", "reap")}
    local, elsewhere = await base(), await run("environment_type=daytona")
    assert {kind for kind in docker for event in local if kind in event} == docker
    assert not {kind for kind in docker for event in elsewhere if kind in event}
