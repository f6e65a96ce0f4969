"""Reads from a task's files what its verification runs, and where. Blocking."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from harbortrainer.docker.names import JS_WORDS, LIBRARIES, READ_BESIDE, SYSTEM, is_tool
from harbortrainer.docker.system import VerifierFacts, below

_SCRIPTS = (".sh", ".bash", ".py", ".js", ".mjs", ".ts", ".rb", ".pl", ".t", "")
_MOST_TEXT = 1024 * 1024  # characters of one file
_VARIABLE = re.compile(r"""(?<![\w.$-])([A-Za-z_]\w*)\s*=\s*(?:[\w.]*Path\()?["']?(/[\w./+-]+)""")
_IN_SHELL = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_PYTHON = r"(?:cwd\s*=\s*|chdir\(\s*|sys\.path\.(?:insert\(\s*\d+\s*,|append\()\s*|Repo\(\s*)(?:str\(|[\w.]*Path\()?"
_IN_PYTHON = re.compile(rf"({_PYTHON})([A-Za-z_]\w*)(?=[\s),])")
_CHANGES_TO = re.compile(
    rf"""(?:(?:\b(?:cd|pushd)|\s-C|--(?:git-dir|work-tree|rootdir)=?)\s*["']?|{_PYTHON}["'])((?![-.]*["'\s;])[\w./+-]+)"""
)
_PYTHONPATH = re.compile(r"""PYTHONPATH["'\]]*\s*[=:]\s*f?["']?([\w./:+$-]+)""")
_PATH = re.compile(r"""(?<![A-Z_])PATH["'\]]*\s*[=:]\s*f?["']?([\w./:+~${}-]+)""")
_HOME = re.compile(r"(?:~|\$HOME|\$\{HOME\})(/[\w./+-]+)")
_RUNS_FROM = re.compile(r"""(?<![\w$}./])([\w./+-]+)/bin/([\w.+-]+)""")
_RUNS_UV = re.compile(r"\buv\s+(run|sync|pip|add|venv)\b")
_RUNS_VENV = re.compile(r"\b(poetry|pdm|pipenv|hatch)\s+run\b")
_IMPORTS = re.compile(r"^\s*(?:from\s+(\w+)|import\s+([\w., ]+))", re.M)
_INSTALLS = re.compile(r"^.*(?:\bpip3? install|\buv (?:add|pip install)|\buvx |--with|\s-w ).*$", re.M)
_ACTS_AS = re.compile(r"\b(?:su|runuser|sudo)\s+(?:-[a-z]+\s+|--login\s+|-\s+)*([a-z_][\w-]*)")
_USER = re.compile(r"""^\s*user\s*=\s*["']?([\w-]+)""", re.M)


@functools.cache
def verifier_facts(task: Path) -> VerifierFacts:
    texts = {
        file: _resolved(file.read_text(errors="replace")[:_MOST_TEXT])
        for root in (task, *task.glob("steps/*"))
        for file in sorted((root / "tests").rglob("*"))
        if file.is_file() and file.suffix in _SCRIPTS
    }
    config = (task / "task.toml").read_text() if (task / "task.toml").is_file() else ""
    every = "\n".join([*texts.values(), config])
    runs_uv = _RUNS_UV.search(every) is not None
    installed = {word for line in _INSTALLS.findall(every) for word in re.findall(r"[A-Za-z_]\w*", line)}
    imports = {name for file, text in texts.items() if file.suffix == ".py" for name in _imported(text)}
    beside = [names for words, names in READ_BESIDE.items() if re.search(rf"\b(?:{words})\b", every)]
    return VerifierFacts(
        folders=frozenset(_folders(every)),
        prefixes=frozenset(_prefixes(every)),
        imports=frozenset(imports & (installed | LIBRARIES)),
        path=frozenset(_path(every)),
        users=frozenset(_ACTS_AS.findall(every)) | frozenset(_USER.findall(config)),
        beside="|".join(beside),
        runs_uv=runs_uv,
        runs_git=re.search(r"\bgit\b", every) is not None,
        runs_make=re.search(r"\bg?make\b", every) is not None,
        runs_js=JS_WORDS.search(every) is not None,
    )


def _resolved(text: str) -> str:
    """With variables that hold an absolute path written out, where a shell or a change of the folder uses them."""
    known = dict(_VARIABLE.findall(text))
    text = _IN_SHELL.sub(lambda found: known.get(found[1], found[0]), text)
    return _IN_PYTHON.sub(lambda found: f'{found[1]}"{known[found[2]]}"' if found[2] in known else found[0], text)


def _imported(text: str) -> Iterator[str]:
    for package, names in _IMPORTS.findall(text):
        yield from (name.split(".")[0].split()[0] for name in [package, *names.split(",")] if name.strip())


def _folders(text: str) -> Iterator[str]:
    found = _CHANGES_TO.findall(text)
    found += [word for words in _PYTHONPATH.findall(text) for word in words.split(":") if "$" not in word]
    for word in filter(None, found):
        path = PurePosixPath(word)
        path = path.parent if path.name == ".git" else path
        if ".." not in path.parts and not below(str(path), ("/tests", "/logs", "/dev", "/proc")):
            yield str(path)


def _prefixes(text: str) -> Iterator[str]:
    if _RUNS_UV.search(text) or _RUNS_VENV.search(text):
        yield ".venv"
    for prefix, name in _RUNS_FROM.findall(text):
        if (is_tool(name) or name == "activate") and prefix not in SYSTEM and not prefix.startswith("/usr/"):
            yield prefix


def _path(text: str) -> Iterator[str]:
    for words in _PATH.findall(text):
        for word in words.split(":"):
            if home := _HOME.fullmatch(word):
                yield f"~{home[1]}"
            elif word and "$" not in word and not below(word, SYSTEM):
                yield word
