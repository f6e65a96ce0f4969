"""The command `tasks allow`: lists and changes what users allow agents to change and leave for one task."""

import json
from pathlib import Path

from harbortrainer.docker.integrity.allowed import ALLOWED_FILE, allow, allowed, outdated, refusal, thing_of
from harbortrainer.errors import UserError, refuse
from harbortrainer.qualify.arguments import AllowArgs
from harbortrainer.tasks.folders import looks_like_task
from harbortrainer.venues.harbor.grading import CAUSES


async def allow_things(args: AllowArgs) -> int:
    """Change what is allowed where something is given, then print what is. Raises UserError, DiskFault."""
    task = Path(args.task).expanduser().resolve()
    if not looks_like_task(task):
        raise UserError(f"task={args.task}: no Harbor task; give its folder, which has task.toml and instruction.md")
    things, notes = set(args.things), list[str]()
    refuse(f"{thing}: {why}" for thing in args.things if (why := refusal(thing)))
    if args.trial is not None:
        of_trial, notes = _of_trial(Path(args.trial).expanduser(), task)
        things |= of_trial
    if things or args.remove:
        allow(task, _changed(allowed(task), things, remove=args.remove))
    for line in (*notes, *_shown(task)):
        print(line)
    return 0


def _changed(before: frozenset[str], things: set[str], *, remove: bool) -> set[str]:
    if not remove:
        return {*before, *things}
    if unknown := sorted(things - before):
        raise UserError(f"{unknown[0]}: was not allowed; leave it out, or list what is allowed without remove=true")
    return {*before} - things if things else set()


def _of_trial(folder: Path, task: Path) -> tuple[set[str], list[str]]:
    """What a trial's CAUSES name, and lines on what of it cannot be allowed. Raises UserError."""
    try:
        found = json.loads((folder / CAUSES).read_text())
        names, number = [str(name) for name in found["causes"]], int(found["number"])
        of_task = Path(json.loads((folder / "config.json").read_text())["task"]["path"]).name
    except FileNotFoundError as error:
        why = f"no {Path(str(error.filename)).name} in it"
        raise UserError(f"trial={folder}: {why}; give the folder of a trial whose reward had unasked causes") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"trial={folder}: cannot be read ({error}); give the folder of another trial") from None
    if of_task != task.name:
        raise UserError(f"trial={folder}: its task is {of_task}, not {task.name}; give a trial of this task")
    things = set(map(thing_of, names))
    wrong = {thing: why for thing in sorted(things) if (why := refusal(thing))}
    notes = [f"{thing} is left out: {why}" for thing, why in wrong.items()]
    if number > len(names):
        notes.append(f"{CAUSES} names {len(names)} of {number} causes; allow a /FOLDER/ of theirs")
    return things - wrong.keys(), notes


def _shown(task: Path) -> list[str]:
    now, earlier = sorted(allowed(task)), sorted(outdated(task))
    lines = [f"allowed: {_plain(thing)}" for thing in now]
    lines += [f"allowed for an earlier version of the task, without effect: {_plain(thing)}" for thing in earlier]
    return [*lines, f"{task.name}: {len(now)} allowed, in {task.parent / ALLOWED_FILE}"]


def _plain(thing: str) -> str:
    """As one line of printable characters."""
    return thing.encode("unicode_escape").decode("ascii")
