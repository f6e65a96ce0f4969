"""The pages say what there is: commands start, their fields exist, links and paths lead to files."""

import os
import re
from functools import cache
from pathlib import Path

import pytest

from harbortrainer.cli.main import TABLE, load
from harbortrainer.cli.scripts import find_script
from harbortrainer.setting import settings
from tests.support import documents
from tests.support.documents import PAGES, Said

# Programs of others that a page may call.
OTHERS = {
    "cp",
    "mv",
    "npm",
    "cd",
    "cat",
    "mkdir",
    "sed",
    "curl",
    "docker",
    "git",
    "harbor",
    "pip",
    "source",
    "sudo",
    "uv",
}
TRAINING = {
    "run.sh",
    "run_skyrl_tx.sh",
    "run_quickstart.sh",
    "run_quickstart_tools.sh",
    "run_quickstart_agent.sh",
}  # take the fields of harbortrainer.train
# The commands of each program; "" = without one.
COMMANDS = {
    program: tuple(name.partition(" ")[2] for name in TABLE if name.split()[0] == program)
    for program in {name.split()[0] for name in TABLE}
}
# `name=value` that is no field: a placeholder, a label of Docker's, an option of dockerd's, a variable of XLA's.
NO_FIELDS = {"field", "key", "NAME", "harbortrainer", "bridge", "XLA_PYTHON_CLIENT_MEM_FRACTION"}
NOT_CLONED = ("datasets/terminal-bench", "datasets/terminal-easy", "server/vllm/.venv")  # fetched and made on demand
NO_PATHS = {"tests/test.sh", "tests/lib.sh", "server/loss_sum"}  # a task's, a metric
NO_PATHS |= {f"server/{name}" for name in ("compiles", "compiles_cached", "compiles_ahead", "compile_seconds")}
NO_PATHS |= {f"server/{name}" for name in ("seats", "requests_per_wave", "wave_seconds", "gpu_busy")}


def mistakes(said: Said) -> str:
    """Why a command of a page would not start; "" = nothing is known against it."""
    program, *words = said.words or [""]
    if program in ("python", "python3", ".venv/bin/python"):
        if words[:1] == ["-m"]:
            return module_mistakes(words[1], words[2:])
        return "" if words[0] == "-" or Path(words[0]).is_file() else f"{words[0]} is no file"
    if program == "harbortrainer":
        if script := find_script(words):
            return unknown(script[1], fields("train")) if script[0].startswith("quickstart") else ""
        if words[0] == "docs":
            return "" if words[1] == "PAGE" or Path(f"docs/{words[1]}.md").is_file() else f"no page {words[1]}"
        return "" if words == ["--help"] else module_mistakes(f"src.{words[0]}", words[1:])
    if program.startswith(".venv/bin/"):
        return "" if Path(program).exists() else f"{program} is no program"
    if "/" in program:
        if not os.access(program, os.X_OK):
            return f"{program} is no file that can be run"
        return unknown(words, fields("train")) if Path(program).name in TRAINING else ""
    missing = [
        word
        for word in words
        if not word.startswith(("-", "my-"))
        and program in ("cp", "mv")
        and word == words[0]
        and not Path(word).exists()
    ]
    return f"{missing[0]} is no file" if missing else "" if program in OTHERS else f"{program} is no program we know"


def module_mistakes(module: str, words: list[str]) -> str:
    path = Path(*module.split("."))
    if module == "src.NAME" or module.split(".")[0] not in ("src", "scripts", "bench"):
        return ""
    if not path.with_suffix(".py").is_file() and not (path / "__main__.py").is_file():
        return f"no module {module}"
    name = module.removeprefix("src.")
    if name == module:
        return ""
    command = words[0] if words and words[0] in COMMANDS[name] else ""
    return unknown(words, fields(name, command))


def unknown(words: list[str], known: frozenset[str]) -> str:
    names = [name for name in documents.field_names(words) if name not in known and name not in NO_FIELDS]
    return f"no field {', '.join(names)}" if names else ""


@cache
def fields(name: str, command: str = "") -> frozenset[str]:
    """Names that the help of `harbortrainer NAME COMMAND` lists."""
    return frozenset(settings(load(TABLE[f"{name} {command}".strip()].kind)))


@cache
def programs() -> tuple[str, ...]:
    """NAME of every `python -m src.NAME`."""
    files = [*Path("src").glob("*.py"), *Path("src").glob("*/__main__.py")]
    mains = [file for file in files if '__name__ == "__main__"' in file.read_text()]
    return tuple(sorted(file.parent.name if file.name == "__main__.py" else file.stem for file in mains))


@cache
def variables() -> frozenset[str]:
    """Names in capitals that scripts, server, trainer or conformance tests use."""
    folders = ("scripts", "src", "server/repairs", "server/shims", "tests/conformance")
    files = [
        *Path().glob("*.sh"),
        *Path("server").glob("*.py"),
        *(file for folder in folders for file in Path(folder).rglob("*")),
    ]
    texts = [file.read_text() for file in files if file.suffix in ("", ".py", ".sh") and file.is_file()]
    return frozenset(name for text in texts for name in re.findall(r"\b[A-Z][A-Z_]{3,}\b", text))


def test_every_program_has_help_that_names_its_fields() -> None:
    assert {"train", "doctor"} <= set(programs())
    for name in programs():
        for command in COMMANDS[name]:
            assert fields(name, command), f"python -m src.{name} {command} --help"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_of_a_page_would_start(page: Path) -> None:
    assert [f"{said}  <- {why}" for said in documents.commands(page) if (why := mistakes(said))] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_settings_named_on_a_page_are_fields(page: Path) -> None:
    commands = [(program, command) for program in programs() for command in COMMANDS[program]]
    known = frozenset(name for program, command in commands for name in fields(program, command))
    named = [(said, documents.field_names([said.text])[0]) for said in documents.settings(page)]
    assert [str(said) for said, name in named if name not in NO_FIELDS | known | variables()] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_and_paths_of_a_page_lead_somewhere(page: Path) -> None:
    broken = [said for said in documents.links(page) if not (page.parent / said.text).exists()]
    gone = [said for said in documents.paths(page) if said.text not in NO_PATHS and not there(said.text)]
    assert [str(said) for said in (*broken, *gone)] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_anchors_of_a_page_are_headings(page: Path) -> None:
    targets = [(said, *said.text.split("#")) for said in documents.anchors(page)]
    broken = [said for said, file, name in targets if name not in documents.headings(page.parent / file)]
    assert [str(said) for said in broken] == []


def there(path: str) -> bool:
    """A file or folder, a module without its .py, or what .gitignore keeps out of a fresh clone."""
    return Path(path).exists() or Path(f"{path}.py").exists() or path.startswith(NOT_CLONED)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("./run.sh batch_sizes=4", "no field batch_sizes"),
        ("scripts/setup.shh --server", "no file that can be run"),
        ("python -m src.trainer", "no module"),
        ("A=1 python -m src.doctor docker tasks_dirs=x | head", "no field tasks_dirs"),
        ("python -m src.doctor clean refresh=true", "no field refresh"),
        ("python scripts/nothing.py", "is no file"),
        ("harbortrainer trian", "no module src.trian"),
        ("harbortrainer docs task", "no page task"),
        ("harbortrainer quickstart seeds=1", "no field seeds"),
        ("harbortrainer server start MODEL 1", ""),
        ("harbortrainer report DIR panel=5", "no field panel"),
        ("cp .env.exemple .env", "is no file"),
        ("runn it", "no program we know"),
        ("B=2 ./run_quickstart.sh seed=3 # comment x=1", ""),
        ("python -m src.doctor clean remove=true", ""),
        ("harbortrainer doctor clean remove=true", ""),
    ],
)
def test_a_wrong_command_is_seen(text: str, why: str) -> None:
    found = mistakes(Said(Path("page.md"), 1, text))
    assert why in found and bool(why) == bool(found)


def test_a_page_is_read_as_meant(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "see [x](other.md#a) and `seed=1`, `python -m src.train\nseed=2`, `src/harbortrainer/train.py`\n\n"
        "    scripts/check now\n\n```bash\n# no\n./run.sh a=1 \\\n  b=2  # why\n```\n```\n./no\n```\n"
    )
    assert [(s.line, s.words) for s in documents.commands(page)] == [
        (8, ["./run.sh", "a=1", "b=2"]), (4, ["scripts/check", "now"]), (1, ["python", "-m", "src.train", "seed=2"]),
    ]  # fmt: skip
    assert [s.text for s in documents.links(page)] == ["other.md"]
    assert [s.text for s in documents.anchors(page)] == ["other.md#a"]
    assert [s.text for s in documents.settings(page)] == ["seed=1"]
    assert [s.text for s in documents.paths(page)] == ["src/harbortrainer/train.py"]


def test_a_heading_has_the_anchor_that_github_gives_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The `kill -9`, twice\n```bash\n# none\n```\n## Train/eval\n")
    assert documents.headings(page) == {"the-kill--9-twice", "traineval"}


SERVER = (*Path("server").glob("*.py"), *Path("server/repairs").glob("*.py"))


def test_the_messages_of_the_troubleshooting_page_are_ours() -> None:
    """Each piece of a message between two `…` is in the source, where literals of several lines are one."""
    texts = [file.read_text() for file in (*Path("src").rglob("*.py"), *Path("scripts").rglob("*.sh"), *SERVER)]
    source = " ".join(re.sub(r'"\s*f?"', "", text) for text in texts)
    pieces = re.sub(r"\{[^{}]*\}", "…", source)
    rows = re.findall(r"^\| `([^`]+)` \|", Path("docs/troubleshooting.md").read_text(), re.MULTILINE)
    said = [piece for row in rows if " " in row for piece in row.split("…") if len(piece.strip()) > 2]
    assert len(said) > 25
    assert [piece for piece in said if piece.strip() not in pieces] == []
