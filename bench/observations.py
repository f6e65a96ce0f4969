"""What a policy knows of the terminal's answers, before and after runs with observation_loss_coef and without.

    python -m bench.observations [--seeds 1] [--coefficient 0.05] [--max-steps 12] [--keep FOLDER] [--write]

The tasks are some of the quickstart's, whose shells say after each command what the policy has never read. Each seed
trains twice, with the settings of run_quickstart.sh. Nats: mean of -log p over all tokens that the terminal answered in
the first evaluation of the seed's first run, the same trials for all weights, before the first step and after the last.
--keep: where the runs stay; finished ones are not run again.
"""

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from bench import report
from bench.off_policy_quickstart import quickstart
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.directory import RunDirectory
from scripts.gpu.known import nats
from tests.support.small_server import Server

KINDS, MEMBERS, HELD_OUT = ("create", "append", "copy", "count"), range(1, 7), (5, 6)
HEADINGS = ("seed", "observation_loss_coef", "nats before", "nats after", "change", "reward, last third", "held out")
SETTINGS = (
    "batch_size=2", "group_size=4", "max_turns=2", "num_substeps=1", "eval_group_size=1", "save_every=0",
    "keep_checkpoints=0",
)  # fmt: skip


def make_tasks(folder: Path) -> Path:
    """The tasks, each with a shell that reports the jobs of another machine after each command."""
    for number, name in enumerate(f"{kind}-{member}" for kind in KINDS for member in MEMBERS):
        shutil.copytree(report.ROOT / "datasets" / "quickstart" / name, folder / name)
        said = f"node {17 * number % 97}: {number % 5} jobs wait, the next backup begins at {number % 24:02}:15"
        with (folder / name / "environment" / "Dockerfile").open("a") as file:
            file.write(f"""\nENV PROMPT_COMMAND="[ -z \\"\\$SEEN\\" ] || echo '{said}'; SEEN=1"\n""")
    return folder


def train(run: RunDirectory, tasks: Path, url: str, seed: int, coefficient: float, max_steps: int) -> None:
    """To its end; what an earlier call began goes on."""
    words = [f"resume={run.path}", f"skyrl_tx_url={url}"]
    if not run.config.exists():
        held_out = ",".join(f"{kind}-{member}" for kind in KINDS for member in HELD_OUT)
        usual = [w for w in quickstart("SETTINGS") if not w.startswith(("tasks_dir", "eval_"))]
        given = dict(word.split("=", 1) for word in (*usual, *SETTINGS))
        given |= {"tasks_dir": str(tasks), "eval_tasks": held_out, "eval_every": str(max_steps), "seed": str(seed)}
        given |= {"backend": "skyrl-tx", "skyrl_tx_url": url, "max_steps": str(max_steps)}
        given |= {"logs_dir": str(run.path.parent), "run_name": run.name, "observation_loss_coef": f"{coefficient:g}"}
        words = [f"{name}={value}" for name, value in given.items()]
    subprocess.run([sys.executable, "-m", "src.train", *words], cwd=report.ROOT, check=True)


def row(run: RunDirectory, first: RunDirectory, seed: int, coefficient: float) -> list[str]:
    before, after = asyncio.run(nats(run, first))
    rows = read_lines(run.metrics)
    rewards = [one["reward/mean"] for one in rows if "reward/mean" in one]
    held_out = [one["eval/reward_mean"] for one in rows if "eval/reward_mean" in one]
    late = fmean(rewards[-max(1, len(rewards) // 3) :])
    change = f"{100 * (after / before - 1):+.1f} %"
    return [
        str(seed),
        f"{coefficient:g}",
        f"{before:.3f}",
        f"{after:.3f}",
        change,
        f"{late:.3f}",
        f"{held_out[-1]:.3f}",
    ]


def main() -> None:
    arguments = _arguments()
    with contextlib.ExitStack() as stack:
        folder = Path(arguments.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-observations-")))
        folder = folder.resolve()
        tasks = folder / "tasks"
        if not tasks.exists():
            make_tasks(tasks)
        settings = dict(word.split("=", 1) for word in quickstart("SERVER")) | {"MAX_LORA_ADAPTERS": "4"}
        server = Server(folder / "server", **settings)
        stack.callback(server.stop)
        server.start()
        rows: list[list[str]] = []
        for seed in arguments.seeds:
            runs = {c: RunDirectory(folder / f"seed-{seed}-{c:g}") for c in (0.0, arguments.coefficient)}
            for coefficient, run in runs.items():
                train(run, tasks, server.url, seed, coefficient, arguments.max_steps)
                rows.append(row(run, runs[0.0], seed, coefficient))
    document = report.RESULTS if arguments.write else None
    report.publish("bench.observations", "observations", HEADINGS, rows, document)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[1])
    parser.add_argument("--coefficient", type=float, default=0.05, help="observation_loss_coef of the other run")
    parser.add_argument("--max-steps", type=int, default=12)
    parser.add_argument("--keep", help="folder for the runs; finished ones in it are not run again")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
