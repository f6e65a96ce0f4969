"""The policy `oracle`: finds the solution of each task and refuses what cannot be typed, before any trial runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harbortrainer.config import Config
from harbortrainer.errors import UserError, refuse
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.solution import Solutions, is_shell, typed_answers
from harbortrainer.tasks.folders import folder_of, read_settings
from harbortrainer.tasks.task import Task

FOLDER, SCRIPT = "solution", "solve.sh"
SHOWN = 5  # names in a note


@dataclass(frozen=True, slots=True)
class _Typed:
    """A task's solution as completions. `turns`: of its longest step."""

    completions: tuple[list[int], ...]
    turns: int

    @property
    def tokens(self) -> int:
        """Of its longest answer."""
        return max(map(len, self.completions))


def load_solutions(tasks: Sequence[Task], config: Config, template: ChatTemplate) -> tuple[Solutions, list[str]]:
    """Return the solutions of all tasks, and notes for the user. Raises UserError: each kind of problem in one line."""
    if config.agent != "terminus-2":
        raise UserError(f"agent={config.agent}: the oracle types as agent=terminus-2 does; leave agent out")
    typed = {task: _typed(scripts, config, template) for task in tasks if (scripts := find_scripts(folder_of(task)))}
    refuse(_problems(tasks, typed, config))
    return Solutions({task.ref: one.completions for task, one in typed.items()}), list(_notes(tasks))


def find_scripts(task: Path) -> list[str]:
    """Get the task's solution, one for each step of a task with steps; [] = one is missing, or is not for a shell."""
    whole = task / FOLDER / SCRIPT
    own = [task / "steps" / str(step["name"]) / FOLDER / SCRIPT for step in read_settings(task).get("steps", ())]
    files = [file if file.parent.is_dir() else whole for file in own] or [whole]
    scripts = [file.read_text(errors="replace") if file.is_file() else "" for file in files]
    return scripts if all(script.strip() and is_shell(script) for script in scripts) else []


def _typed(scripts: Sequence[str], config: Config, template: ChatTemplate) -> _Typed:
    def encoded(answer: str) -> list[int]:
        completion = template.completion(answer)
        if template.answer(completion).text == answer:
            return completion
        return template.completion(json.dumps(json.loads(answer)))  # this tokenizer alters letters beyond ASCII

    def fits(answer: str) -> bool:
        return len(encoded(answer)) <= config.max_tokens

    answers = [typed_answers(script, fits) for script in scripts]
    return _Typed(tuple(encoded(answer) for one in answers for answer in one), max(map(len, answers)))


def _problems(tasks: Sequence[Task], typed: Mapping[Task, _Typed], config: Config) -> Iterator[str]:
    """Lines with field, value and fix."""
    if config.enable_summarize:
        yield "enable_summarize=true: a solution has no answer to a request for a summary; set it to false"
    if missing := [task.name for task in tasks if task not in typed]:
        yield (
            f"tasks_dir: {len(missing)} of {len(tasks)} tasks have no {FOLDER}/{SCRIPT} for a shell, which the policy "
            f"oracle types; {_leave_out(missing)}"
        )
    if long := {task.name: one.tokens for task, one in typed.items() if one.tokens > config.max_tokens}:
        most = max(long.values())
        yield (
            f"max_tokens={config.max_tokens}: solutions have answers of up to {most} tokens; set max_tokens={most}, or "
            f"for the longer ones {_leave_out(long)}"
        )
    if slow := {task.name: one.turns for task, one in typed.items() if 0 < config.max_turns < one.turns}:
        most = max(slow.values())
        yield (
            f"max_turns={config.max_turns}: solutions take up to {most} turns; set max_turns={most}, or for the longer "
            f"ones {_leave_out(slow)}"
        )


def _leave_out(names: Sequence[str] | Mapping[str, int]) -> str:
    return f"leave them out with tasks_exclude={','.join(names)}"


def _notes(tasks: Sequence[Task]) -> Iterator[str]:
    """A line on solutions that need more than their script."""

    def needs_more(task: Path) -> bool:
        files = (file for name in (FOLDER, f"steps/*/{FOLDER}") for file in task.glob(f"{name}/**/*"))
        own = any(file.is_file() and file.name != SCRIPT for file in files)
        return own or bool(read_settings(task).get("solution", {}).get("env"))

    if more := [task.name for task in tasks if needs_more(folder_of(task))]:
        names = ", ".join(more[:SHOWN]) + (", …" if len(more) > SHOWN else "")
        yield (
            f"oracle: the solutions of {len(more)} tasks have more files or an environment, which a policy does not "
            f"have; their trials may earn 0: {names}"
        )
