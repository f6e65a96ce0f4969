"""Verifiers that install something first: which do, and which could not and so graded nothing."""

import re
from pathlib import Path

COULD_NOT_INSTALL = "the verifier could not install"  # begins the cause of a trial that ended so
FETCHES = re.compile(
    r"\b(curl|wget|git clone|apt(?:-get)?(?: -\S+)* (?:update|install)|apk add|pip3? install|uv (?:pip|tool|sync)|uvx"
    r"|npm (?:i|install|ci)|npx|cargo install|go (?:get|install))\b"
)
_LOCAL = r"(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[::1\])"
_ADDRESS = re.compile(r"https?://([^\s/:\"']+|\[::1\])")
_IS_LOCAL = re.compile(rf"{_LOCAL}\b|--noproxy|/dev/tcp/", re.IGNORECASE)
_MOST = 65536  # bytes of a verifier's output that are read, of its beginning and of its end
# An installer's own word that it failed.
_FAILED = re.compile(
    r"^(E: (?:Unable to (?:locate package|fetch)|Failed to fetch|Package .* has no installation candidate).*"
    r"|W: Failed to fetch.*|Err:\d+ .*|.*Temporary failure (?:resolving|in name resolution).*|.*NewConnectionError.*"
    r"|curl: \((?:5|6|7|28|35|52|56|60)\) .*|wget: (?:unable to resolve|bad address).*"
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
    r"test session starts|^=+ .*\d+ (?:passed|failed|errors?)\b|^(?:PASSED|FAILED) |^Ran \d+ tests? in"
    r"|^(?:not )?ok \d+",
    re.MULTILINE,
)


def failed_install(task: Path, trial: Path) -> str:
    """Why the tests of a verifier never ran: what it could not install; "" = there is no sign of that. Blocks.

    Asked only of trials that earned nothing. It takes all of: a script that installs something, an installer's own
    error in its output, a program or module missing afterwards that the script installs (or uv, which runs the tests,
    unable to fetch them), and no trace of a test that ran. One who forges them gains nothing: such a trial is
    neither trained on nor counted.
    """
    wanted = _installed("\n".join(code(file) for file in scripts(task)))
    if not wanted:
        return ""
    for file in sorted(trial.glob("**/verifier/test-stdout.txt")):
        if found := _diagnose(_read(file), wanted):
            return found
    return ""


def fetching(script: str) -> list[str]:
    """Commands of a shell script that fetch from the network, each line's; those that only talk to this host do not."""
    addresses = _ADDRESS.findall(script)
    only_local = bool(addresses) and all(re.fullmatch(_LOCAL, address) for address in addresses)
    return [word for line in _lines(script) for word in FETCHES.findall(line) if _goes_out(word, line, only_local)]


def scripts(task: Path) -> list[Path]:
    """Of its verifier."""
    return [*task.glob("tests/**/*.sh"), *task.glob("steps/*/tests/**/*.sh")]


def code(file: Path) -> str:
    """Without its comment lines."""
    lines = file.read_bytes().decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def _diagnose(output: str, wanted: set[str]) -> str:
    failed = next((line for line in _FAILED.findall(output) if not re.search(_LOCAL, line)), "")
    if not failed or _TESTS_RAN.search(output):
        return ""
    for missing in _MISSING.finditer(output):
        name = missing["program"] or missing["module"] or ("uvx" if missing["uv"] else "")
        if name in wanted:
            return f"{COULD_NOT_INSTALL} {name}: {' '.join(failed.split())[:200]}"
    return ""


def _installed(script: str) -> set[str]:
    """Names in the commands that fetch something."""
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
    try:
        content = file.read_bytes()
    except OSError:
        return ""
    if len(content) > 2 * _MOST:
        content = content[:_MOST] + b"\n" + content[-_MOST:]
    return content.decode(errors="replace")
