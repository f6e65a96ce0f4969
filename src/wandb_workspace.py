"""`python -m src.wandb_workspace PROJECT [entity=NAME] [name=TITLE] [json=true]`: a view that opens useful."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from src.errors import UserError
from src.sinks.panels import FIRST, Plot, Section, sections
from src.sinks.samples import EVALUATION, TRAINING
from src.sinks.wandb_log import has_key

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

STEP = "global_step"
NAME = "harbortrainer"
TABLES = "Sampled conversations"
HELP = f"""python -m src.wandb_workspace PROJECT [entity=NAME] [name=TITLE] [json=true]

Saves a view of a wandb project: the sections of docs/metrics.md, "{FIRST}" on top, and the tables of conversations.

  entity=NAME   user or team of the project; default: that of your key
  name=TITLE    of the view, default {NAME}
  json=true     prints what would be saved, and sends nothing"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 a mistake or fault, told in a line."""
    return tell_result(sys.argv[1:] if argv is None else argv, HELP, _save)


def tell_result(arguments: Sequence[str], help_text: str, work: Callable[[Sequence[str]], object]) -> int:
    """Print the help where it is asked for or nothing is, else what `work` makes of the arguments.

    Exit status: 0 done, 2 nothing was asked for, or a mistake or fault, told in a line.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        print(help_text)
        return 0 if arguments else 2
    try:
        print(work(arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def workspace(project: str, entity: str, name: str = NAME) -> "Workspace":
    """The view as wandb's own package holds it. Slow to import: seconds."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    from wandb_workspaces.workspaces import Section as View
    from wandb_workspaces.workspaces import SectionLayoutSettings, Workspace, WorkspaceSettings

    views = [
        View(
            name=section.name,
            panels=[_panel(plot) for plot in section.plots],
            is_open=section.name == FIRST,
            pinned=section.name == FIRST,
            layout_settings=SectionLayoutSettings(columns=3, rows=_rows(section)),
        )
        for section in sections()
    ]
    views.insert(1, View(name=TABLES, panels=_tables(), layout_settings=SectionLayoutSettings(columns=1, rows=2)))
    return Workspace(entity=entity, project=project, name=name, sections=views, settings=WorkspaceSettings(x_axis=STEP))


def _rows(section: Section) -> int:
    return min(-(-len(section.plots) // 3), 3)


def _panel(plot: Plot) -> Any:
    from wandb_workspaces.reports.v2 import LinePlot

    shown: dict[str, Any] = {"metric_regex": plot.pattern} if plot.pattern else {"y": list(plot.metrics)}
    return LinePlot(title=plot.title, x=STEP, title_x=STEP, title_y=plot.unit or None, **shown)


def _tables() -> list[Any]:
    from wandb_workspaces.reports.v2 import WeavePanelSummaryTable

    return [WeavePanelSummaryTable(table_name=name) for name in (TRAINING, EVALUATION)]


def _save(arguments: Sequence[str]) -> str:
    project, given = _read(arguments)
    entity = given.get("entity", "")
    if given.get("json") == "true":
        return json.dumps(workspace(project, entity, given.get("name", NAME))._to_model().model_dump(mode="json"))
    if not has_key():
        raise UserError("WANDB_API_KEY: missing; set it, or print the view with json=true")
    import wandb
    from wandb.errors import Error

    try:
        view = workspace(project, entity or wandb.Api().default_entity or "", given.get("name", NAME))
        return view.save().url
    except (Error, OSError, ValueError) as error:  # ValueError: an answer that is none
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"{project}: wandb did not take the view ({type(error).__name__}: {why})") from None


def _read(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    pairs = [argument.lstrip("-").partition("=") for argument in arguments]
    names = [name for name, given, _ in pairs if not given]
    fields = {name: value for name, given, value in pairs if given}
    for name in fields.keys() - {"entity", "name", "json"}:
        raise UserError(f"{name}={fields[name]}: unknown; entity=, name= and json= are there")
    if len(names) != 1:
        raise UserError("PROJECT: give the name of one wandb project")
    return names[0], fields


if __name__ == "__main__":
    sys.exit(main())
