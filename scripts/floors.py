"""The floors of the package, and docs/modules.md, which has them in the words of each package."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "harbortrainer"
FLOORS = [  # a module or package imports only what stands in a line above its own
    {"commands", "stats", "text"},
    {"errors", "setting"},
    {"config", "durable", "model_file", "plugins"},
    {"harbor", "learning", "sft_config", "stopping"},
    {"cli", "docker", "policy", "tasks"},
    {"model_api", "other_models"},
    {"backend", "rollout", "run"},
    {"budget", "probe", "report", "venues", "watch"},
    {"bundled", "qualify"},
    {"doctor", "training"},
    {"evaluation", "planning", "replay", "sft"},
    {"serve", "train", "weights"},
    {"face"},
]
HEAD = """# Modules

`scripts/write_fields.py` writes this page: the first line of each package of `src/harbortrainer`; each module begins
with one too. A package or module imports only from lower floors; `tests/unit/test_floors.py` reads every import.
[architecture.md](architecture.md) says how they work together.

| floor | | what it is for |
| --- | --- | --- |
"""


def modules_page() -> str:
    """Markdown: the floors from the top, with what each package says of itself."""
    rows: list[str] = []
    for number in range(len(FLOORS), 0, -1):
        for place, name in enumerate(sorted(FLOORS[number - 1])):
            package = (PACKAGE / name).is_dir()
            file = PACKAGE / name / "__init__.py" if package else PACKAGE / f"{name}.py"
            text = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
            floor = "" if place else f"{number} "
            rows.append(f"| {floor}| `{name}{'/' if package else '.py'}` | {text} |")
    return HEAD + "\n".join(rows) + "\n"
