"""Earlier runs of the same model on the same tasks: what a place in a batch and a step took in each of them."""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.budget.use import Use
from src.config import Config
from src.config_changes import to_json
from src.errors import UserError
from src.run.directory import RunDirectory, read_config
from src.run.jsonl import read_lines
from src.tasks.split import SPLIT_FILE

# Another value of one of these, and a trial takes another number of turns, tokens or seconds.
ALIKE = (
    "backend", "model_name", "max_turns", "max_tokens", "context_limit", "enable_summarize", "enable_thinking",
    "command_wait", "environment_type",
)  # fmt: skip
LEAST_SHARED = 0.5  # of the planned tasks, in the earlier run too
NEWEST = 20  # runs that are read
log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class Unit:
    """One batch of training or one evaluation. `use`: of all its trials, failed ones too, and its update."""

    index: int  # 0-based step, or steps before the evaluation
    first: bool  # of its process: caches are cold
    places: int
    started: int
    use: Use
    sample_sec: float
    update_sec: float  # update and publish; 0 for an evaluation
    said_once: float  # tokens of prompts that no earlier prompt of their trial had


@dataclass(frozen=True, slots=True)
class PastRun:
    name: str
    parallel: int  # n_parallel_envs
    steps: tuple[Unit, ...]
    evaluations: tuple[Unit, ...]
    beside_sec: float | None  # of the process, beside steps and evaluations; None where it was resumed or goes on


def past_runs(config: Config, digests: set[str], also: Sequence[Path] = ()) -> list[PastRun]:
    """Of `logs_dir`, the newest first, and of `also`. `digests`: of the planned tasks. Unreadable runs are left out."""
    folder = Path(config.logs_dir).expanduser()
    found = sorted(folder.glob("*/config.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    paths = list(dict.fromkeys([*(path.resolve() for path in also), *(file.parent.resolve() for file in found)]))
    runs = []
    for path in paths:
        try:
            if (run := _read(RunDirectory(path), to_json(config), digests)) is not None:
                runs.append(run)
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:
            log.warning(
                "%s is left out of the estimate: %s", path, " ".join(str(error).split()) or type(error).__name__
            )
        if len(runs) == NEWEST:
            break
    return runs


def read_records(run: RunDirectory) -> list[dict[str, Any]]:
    """Of its ledger. Raises UserError for a damaged line."""
    return read_lines(run.ledger, checked=True)


def _read(run: RunDirectory, wanted: Mapping[str, Any], digests: set[str]) -> PastRun | None:
    """None: another model or other tasks, or nothing was finished."""
    config = read_config(run)
    usual = to_json(Config(model_name="", tasks_dir=""))
    if any(config.get(name, usual[name]) != wanted[name] for name in ALIKE):
        return None
    split = json.loads((run.path / SPLIT_FILE).read_text())
    theirs = {task["digest"] for side in ("train", "held_out") for task in split[side].values()}
    if len(digests & theirs) < LEAST_SHARED * len(digests):
        return None
    records, rows = read_records(run), {row["global_step"]: row for row in read_lines(run.metrics)}
    resumed = any(record["event"] == "resumed" for record in records)
    steps, evaluations = tuple(_steps(records, rows)), tuple(_evaluations(records, rows))
    if not steps and not evaluations:
        return None
    beside = None if resumed else _beside(run, rows.values())
    return PastRun(run.name, int(config["n_parallel_envs"]), steps, evaluations, beside)


def _steps(records: Sequence[Mapping[str, Any]], rows: Mapping[int, Mapping[str, Any]]) -> Iterator[Unit]:
    cold = True
    batches = _batches(records, "s")
    for step, (places, started, use) in sorted(batches.items()):
        row = rows.get(step + 1)
        if row is None or "time/step" not in row:
            continue
        use += Use(trained=row.get("train/tokens", 0.0))
        once = row["tokens/unique"] - row["tokens/sampled"]
        sample = row["time/sample"]
        yield Unit(step, cold, places, started, use, sample, row["time/step"] - sample, once)
        cold = False


def _evaluations(records: Sequence[Mapping[str, Any]], rows: Mapping[int, Mapping[str, Any]]) -> Iterator[Unit]:
    for step, (places, started, use) in sorted(_batches(records, "e").items()):
        row = rows.get(step, {})
        if "eval/reward_mean" in row:
            yield Unit(step, False, places, started, use, row["time/evaluate"], 0.0, 0.0)


def _batches(records: Sequence[Mapping[str, Any]], kind: str) -> dict[int, tuple[int, int, Use]]:
    """Step -> places, trials that were started, what they took."""
    places: dict[int, set[str]] = defaultdict(set)
    started: dict[int, int] = defaultdict(int)
    use: dict[int, Use] = defaultdict(Use)
    since: dict[str, float] = {}
    for record in records:
        if (name := record.get("trial", "")).startswith(kind):
            step = int(name[1:7])
            if record["event"] == "started":
                started[step] += 1
                since[name] = record["time"]
                places[step].add("-".join(name.split("-")[:3]))
            else:
                seconds = max(0.0, record["time"] - since.pop(name, record["time"]))
                use[step] += Use(record["prompt_tokens"], record["sampled_tokens"], 0.0, seconds)
    return {step: (len(places[step]), started[step], use[step]) for step in places}


def _beside(run: RunDirectory, rows: Any) -> float | None:
    """From its folder's first file to its picture, which is made at the end, without steps and evaluations."""
    picture = run.path / "reward_curve.png"
    if not picture.exists():
        return None
    whole = picture.stat().st_mtime - run.config.stat().st_mtime
    inside = sum(row.get("time/step", 0.0) + row.get("time/evaluate", 0.0) for row in rows)
    return whole - inside if whole >= inside else None
