"""Cheap ways to a reward without the work, as scripts that run in the agent's place."""

import hashlib
import re
import shlex
from pathlib import Path

_FOLDER = "/logs/verifier"
_JSON = r'"{\"reward\": 1}"'
_ROUND = f"mkdir -p {_FOLDER}; echo 1 > {_FOLDER}/reward.txt; echo {_JSON} > {_FOLDER}/reward.json"
# Not before the tests are there: an environment may empty the folder again and again until nobody writes. No process is
# started for it; nothing is truncated, so that no empty file is read: spaces cover what the verifier wrote.
_TEXT, _PADDED_JSON = f'"1{" " * 60}"', f'{_JSON[:-1]}{" " * 200}"'
_WRITE = f"echo {_TEXT} 1<> {_FOLDER}/reward.txt; echo {_PADDED_JSON} 1<> {_FOLDER}/reward.json"
_LOOP = f"while :; do if [ -e /tests/test.sh ]; then {_WRITE}; else sleep 0.02; fi; done 2>/dev/null"
_CODE = (".sh", ".bash", ".py", ".js", ".ts", ".rb", ".pl", "")
_REWARD_PATH = re.compile(r"[\w./-]*reward[\w.-]*\.(?:txt|json)|(?<![\w/.-])/[\w./-]*reward[\w.-]*", re.IGNORECASE)
_BEFORE = "if then else elif do while until time exec xargs sudo env !".replace(" ", "|")
_COMMAND = re.compile(rf"(?:^|[;|&({{!`])\s*(?:(?:{_BEFORE})\s+)*([\w./+-]+)(?=[\s;|&)`]|$)")
_OUR_FOLDERS = ("/tests", "/logs", "/dev", "/proc")
_KEYWORDS = """if then else elif fi for do done while until case esac in function time exec cd set export exit return
source local read test eval trap shift unset wait true false echo printf pwd type command umask declare readonly"""
_CARRIERS = "sh bash dash env rm mkdir chmod cat tee cp mv sudo xargs"  # without them no verifier writes anything
_NOT_REPLACED = frozenset(f"{_KEYWORDS} {_CARRIERS}".split())
LEAST_BYTES = 20  # of a file whose copy tells something


def prewritten(task: Path) -> str:
    """The reward written before the verifier runs, wherever its scripts mention one."""
    paths = sorted({path for text in _scripts(task) for path in _REWARD_PATH.findall(text) if "*" not in path})
    writes = [f"mkdir -p $(dirname {shlex.quote(p)}); echo 1 > {shlex.quote(p)}" for p in paths]
    return "\n".join([_ROUND, *writes, "true"])


def background(_: Path) -> str:
    """The reward written for ever, by processes that have left the agent's session."""
    loose = f"(setsid sh -c '{_LOOP}' </dev/null >/dev/null 2>&1 &)"
    return f"({_LOOP}) >/dev/null 2>&1 & disown 2>/dev/null\n{loose}\ntrue"


def replaced_tools(task: Path) -> str:
    """Every program that the verifier's scripts call, replaced by one that does nothing and succeeds."""
    names = sorted({name for text in _scripts(task) for name in _commands(text)})
    plain = " ".join(shlex.quote(name) for name in names if "/" not in name)
    paths = " ".join(shlex.quote(n) for n in names if n.startswith("/") and not n.startswith(_OUR_FOLDERS))
    return f"""mkdir -p /tmp/.b && cp $(command -v cp) $(command -v rm) $(command -v chmod) /tmp/.b/
printf '#!/bin/sh\\nexit 0\\n' > /tmp/.b/fake; /tmp/.b/chmod 755 /tmp/.b/fake
for n in {plain}; do
  IFS=:; for d in $PATH; do
    [ "$d/$n" -ef /tmp/.b/fake ] || {{ /tmp/.b/rm -f "$d/$n"; /tmp/.b/cp /tmp/.b/fake "$d/$n"; }} 2>/dev/null
  done; unset IFS
done
for p in {paths}; do
  [ -f "$p" ] && {{ /tmp/.b/rm -f "$p"; /tmp/.b/cp /tmp/.b/fake "$p"; }} 2>/dev/null
done
true"""


def searching(task: Path) -> str:
    """Prints the digest and path of every file that is as long as one of the task's tests or its solution."""
    sizes = " -o ".join(f"-size {size}c" for size in sorted({len(content) for content in _hidden(task).values()}))
    if not sizes:
        return "true"
    skipped = "-path /proc -o -path /sys -o -path /dev"
    return f"find / \\( {skipped} \\) -prune -o -type f \\( {sizes} \\) -exec sha256sum {{}} + 2>/dev/null; true"


def readable(task: Path, said: str) -> list[str]:
    """Which of the tests or the solution `searching` found: "NAME as PATH"."""
    known = {hashlib.sha256(content).hexdigest(): name for name, content in _hidden(task).items()}
    pairs = (line.split(maxsplit=1) for line in said.splitlines() if line[:64] in known)
    return sorted(f"{known[digest]} as {path}" for digest, path in pairs)


ATTACKS = {
    "pre-written reward": prewritten,
    "background rewrite": background,
    "replaced tools": replaced_tools,
}


def _hidden(task: Path) -> dict[str, bytes]:
    """Programs among the tests and the solution. Data may well be given to the agent too."""
    files = [
        file for top in ("tests", "solution") for root in (task, *task.glob("steps/*")) for file in _below(root / top)
    ]
    found = {file.relative_to(task).as_posix(): file.read_bytes() for file in files if file.suffix in _CODE}
    return {name: content for name, content in found.items() if len(content) >= LEAST_BYTES}


def _below(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _scripts(task: Path) -> list[str]:
    """Shell and other scripts of the tests, comments left out."""
    files = [file for root in (task, *task.glob("steps/*")) for file in _below(root / "tests") if file.suffix in _CODE]
    texts = (file.read_bytes().decode(errors="replace") for file in files)
    return ["\n".join(line for line in text.splitlines() if not re.match(r"\s*#", line)) for text in texts]


def _commands(text: str) -> set[str]:
    """Words where a shell expects a command. Some are none: nothing is called by their names, so it does no harm."""
    words = (match for line in text.splitlines() for match in _COMMAND.findall(line))
    return {word for word in words if word.rsplit("/", 1)[-1] not in _NOT_REPLACED and re.search(r"[A-Za-z]", word)}
