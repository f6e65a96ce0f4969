"""Verifiers that could not install what their tests need."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from harbortrainer.docker.box.archive import READ

COULD_NOT_INSTALL = "the verifier could not install"  # begins the cause of a trial that ended so
FETCHES = re.compile(
    r"\b(curl|wget|git clone|apt(?:-get)?(?: -\S+)* (?:update|install)|apk add|pip3? install|uv (?:pip|tool|sync)|uvx"
    r"|npm (?:i|install|ci)|npx|cargo install|go (?:get|install))\b"
)
_LOCAL = r"(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[::1\])"
_ADDRESS = re.compile(r"https?://([^\s/:\"']+|\[::1\])")
_IS_LOCAL = re.compile(rf"{_LOCAL}\b|--noproxy|/dev/tcp/", re.IGNORECASE)
_MOST = 65536  # bytes of a verifier's output that are read, of its beginning and of its end
# An installer's report of its failure.
_FAILED = re.compile(
    r"^(E: (?:Unable to (?:locate package|fetch)|Failed to fetch|Package .* has no installation candidate).*"
    r"|W: Failed to fetch.*|Err:\d+ .*|.*Temporary failure (?:resolving|in name resolution).*|.*NewConnectionError.*"
    r"|curl: \((?:5|6|7|22|28|35|52|56|60)\) .*|wget: (?:unable to resolve|bad address).*"
    r"|.*failed: (?:Name or service not known|Connection refused|Connection timed out|Network is unreachable).*"
    r"|ERROR: (?:Could not find a version|No matching distribution|unable to select packages).*"
    r"|error: (?:Request failed|Failed to fetch|error sending request).*|.*failed to lookup address information.*"
    r"|npm (?:ERR!|error).*(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT).*|fatal: unable to access 'http.*)$",
    re.MULTILINE,
)
# What is missing then: a program (as bash and dash say it), or a module of Python.
_MISSING = re.compile(
    r"^\S+: (?:line )?\d+: (?P<program>[\w.+-]+): (?:command )?not found$"
    r"|No module named '?(?P<module>\w+)|^error: (?P<uv>Request failed|Failed to fetch)",
    re.MULTILINE,
)
_TESTS_RAN = re.compile(
    r"test session starts|^=+ .*\d (?:passed|failed|errors?)\b|^(?:PASSED|FAILED) |^Ran \d+ tests? in"
    r"|^(?:not )?ok \d+",
    re.MULTILINE,
)


def failed_install(task: Path, trial: Path) -> str:
    """Return what the verifier could not install, so that its tests never ran; "" without signs of that. Blocks.

    For trials that earned nothing. The signs, all of them: a script that installs something, an installer's error in
    its output, then a missing program or module that the script installs (or uv, which runs the tests, unable to
    fetch them), and no trace of a test that ran. A policy can cause them: a
    verification without its work decides who is at fault.
    """
    wanted = _installed("\n".join(code(file) for file in scripts(task)))
    found = (_diagnose(output, wanted) for output in outputs(trial)) if wanted else iter(())
    return next((cause for cause in found if cause), "")


def outputs(trial: Path) -> Iterator[str]:
    """Get what the verifier of each step printed, its beginning and end. The agent may have made files of that name."""
    found = (file for folder in ("verifier", "steps/*/verifier") for file in trial.glob(f"{folder}/test-stdout.txt"))
    return (_read(file) for file in sorted(found))


def fetching(script: str) -> list[str]:
    """Return the commands of a shell script that fetch from the network, without those that only reach this host."""
    addresses = _ADDRESS.findall(script)
    only_local = bool(addresses) and all(re.fullmatch(_LOCAL, address) for address in addresses)
    return [word for line in _lines(script) for word in FETCHES.findall(line) if _goes_out(word, line, only_local)]


def scripts(task: Path) -> list[Path]:
    """Return the shell scripts of the task's verifier."""
    return [*task.glob("tests/**/*.sh"), *task.glob("steps/*/tests/**/*.sh")]


def code(file: Path) -> str:
    """Return the text without comment lines."""
    lines = file.read_bytes().decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def failed_fetch(output: str) -> str:
    """Return the first line in which a program reports that it could not fetch something; "" = there is none."""
    return next((line for line in _FAILED.findall(output) if not re.search(_LOCAL, line)), "")


def _diagnose(output: str, wanted: set[str]) -> str:
    failed = failed_fetch(output)
    if not failed or _TESTS_RAN.search(output):
        return ""
    for missing in _MISSING.finditer(output):
        name = missing["program"] or missing["module"] or ("uvx" if missing["uv"] else "")
        if name in wanted:
            return f"{COULD_NOT_INSTALL} {name}: {' '.join(failed.split())[:200]}"
    return ""


def _installed(script: str) -> set[str]:
    """The names in commands that fetch something."""
    commands = [part for line in _lines(script) for part in re.split(r"&&|;|\|\|", line) if fetching(part)]
    names = {name for command in commands for name in re.findall(r"[A-Za-z_][\w.+-]*", command)}
    return names | ({"uvx"} if "uv" in names else set())


def _goes_out(word: str, line: str, only_local: bool) -> bool:
    if word not in ("curl", "wget"):
        return True
    addresses = _ADDRESS.findall(line)
    if any(not re.fullmatch(_LOCAL, address) for address in addresses):
        return True
    return not (_IS_LOCAL.search(line) or only_local)


def _lines(script: str) -> list[str]:
    return script.replace("\\\n", " ").splitlines()


def _read(file: Path) -> str:
    """The text of a file, "" if it is none: a container may share its folder."""
    try:
        with open(os.open(file, READ), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                return ""
            content = opened.read(_MOST)
            if found.st_size > 2 * _MOST:
                opened.seek(-_MOST, os.SEEK_END)
                content += b"\n"
            content += opened.read(_MOST)
    except OSError:
        return ""
    return content.decode(errors="replace")
