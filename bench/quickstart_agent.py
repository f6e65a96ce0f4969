"""A policy trained through mini-swe-agent, with several seeds: held-out reward before and after, with 95 % intervals.

    python -m bench.quickstart_agent [--seeds 1,2] [--keep FOLDER] [--write] [SETTING=VALUE ...]

Each seed is one `./run_quickstart_agent.sh`, from the start of its server to its end: the agent acts in containers and
asks the run's model API. A trial takes some seconds of CPU, nearly all of it the agent's; that is not in the column,
which counts trainer and server. --keep: where the runs stay. --write puts the table into bench/RESULTS.md.
Fails when the held-out reward rises by less than 0.15, or a history was not recognised.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from bench import report
from bench.quickstart_tools import HEADINGS, adopt, train

SCRIPT = report.ROOT / "run_quickstart_agent.sh"
LEAST_GAIN, MOST_TOKENS, MOST_FOREIGN = 0.15, 1.3, 0.01
AGENTS = ("tokens for each unique token", "foreign_rate", "never_asked")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--keep", type=Path, help="folder of the runs; without it they are deleted")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="of the trainer, such as max_steps=4")
    arguments = parser.parse_args()
    adopt()
    rows, wrong = [], list[str]()
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-agent-")))
        for seed in arguments.seeds.split(","):
            row, gain, _, metrics = train(SCRIPT, seed, folder / f"seed-{seed}", *arguments.settings)
            tokens, foreign, silent = of_agents(metrics)
            rows.append([*row, f"{tokens:.2f}", f"{foreign:.3f}", f"{silent:.0f}"])
            print(*rows[-1], sep="  ", flush=True)
            wrong += [f"seed {seed}: gain {gain:.2f}"] * (gain < LEAST_GAIN)
            wrong += [f"seed {seed}: {tokens:.2f} tokens for each unique token"] * (tokens > MOST_TOKENS)
            wrong += [f"seed {seed}: foreign_rate {foreign:.3f}"] * (foreign >= MOST_FOREIGN)
            wrong += [f"seed {seed}: {silent:.0f} agents never asked"] * (silent > 0)
    document = report.RESULTS if arguments.write else None
    headings = [*HEADINGS, *AGENTS]
    report.publish("bench.quickstart_agent", "quickstart-agent", headings, rows, document, wrong=wrong)


def of_agents(metrics: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Means of a run's steps: tokens for each unique token, foreign histories; agents that never asked, in all."""
    steps = [row for row in metrics if "agent/foreign_rate" in row]
    tokens, foreign = (
        fmean(row[name] for row in steps) for name in ("agent/tokens_per_unique_token", "agent/foreign_rate")
    )
    return tokens, foreign, sum(row["agent/never_asked"] for row in steps)


if __name__ == "__main__":
    main()
