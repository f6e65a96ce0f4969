"""Parts of a run found by name: entry points of a package outside the tree, paths, objects of this process."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer import plugins
from harbortrainer.bundled.agents.program import Program
from harbortrainer.cli.arguments import validate
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.model_api.service import wires
from harbortrainer.plugins import known, offer, plugin
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.training.brought import brought
from harbortrainer.venues.harbor.container_agent import agent_memory, agent_of, check_agent
from harbortrainer.venues.harbor.environment import environment_config
from tests.support.plugin_caches import forget
from tests.support.task_folder import write_task

CODE = """
from dataclasses import replace

from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.docker.docker import DockerEnvironment
from harbortrainer.bundled.wires.chat import WIRE as CHAT
from harbortrainer import Program
from harbortrainer.tasks.task import Task

class Venue:
    def find(self, name): return name, "v1"
    identify = check = room = find
    def names(self, place): return [f"{place}-{n}" for n in range(3)]
    def load(self, place, excluded):
        return [Task(name, name, "0" * 64) for name in self.names(place) if name not in excluded]

class Agent(BaseInstalledAgent):
    @staticmethod
    def name(): return "stranger"
    async def install(self, environment): ...
    async def run(self, instruction, environment, context): ...

class Environment(DockerEnvironment): ...

VENUE, WIRE = Venue(), replace(CHAT, path="/v9/chat")
PROGRAM = Program("strange", f"{__name__}:Agent", "strange-program", 64)
"""
ENTRIES = """
[harbortrainer.venues]
guess = stranger.parts:VENUE
[harbortrainer.agents]
strange = stranger.parts:PROGRAM
[harbortrainer.wires]
v9 = stranger.parts:WIRE
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package of somebody else."""
    site = tmp_path / "site"
    for name, text in {
        "stranger/__init__.py": "",
        "stranger/parts.py": CODE,
        "stranger-2.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: stranger\nVersion: 2.5\n",
        "stranger-2.5.dist-info/entry_points.txt": ENTRIES,
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    monkeypatch.syspath_prepend(str(site))
    forget()
    yield site / "stranger" / "parts.py"
    for name in [name for name in sys.modules if name.startswith("stranger")]:
        del sys.modules[name]
    forget()


def config(**values: Any) -> Config:
    return Config(model_name="m", **{"tasks_dir": "d", **values})


def test_this_packages_own_parts_are_found_in_a_checkout() -> None:
    assert known("venues") == ["harbor", "tau"]
    assert known("agents") == ["mini-swe-agent", "codex", "opencode", "qwen-coder", "claude-code"]
    assert sorted(wires()) == ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"]
    for group in ("venues", "agents", "wires", "hosts"):
        assert all(plugin(group, group, name).source == "" for name in known(group))


def test_an_installed_package_brings_a_venue_an_agent_and_a_wire(stranger: Path) -> None:
    assert (known("venues")[-1], known("agents")[-1]) == ("guess", "strange")
    (source,) = find_sources("guess:easy")
    assert (source.path, source.version, source.venue) == ("easy", "v1", "guess")
    tasks = load_sources([source], exclude=["easy-1"])
    assert [(task.name, task.venue) for task in tasks] == [("easy-0", "guess"), ("easy-2", "guess")]
    one = config(agent="strange", tasks_dir="guess:easy")
    assert agent_memory(one) == 64
    assert wires()["/v9/chat"].path == "/v9/chat"
    noted = {field: one.source for field, one in brought(one, tasks).items()}
    assert set(noted) == {"tasks_dir=guess", "agent", "wires=v9"}
    assert noted["agent"].startswith("stranger 2.5 sha256:")


@pytest.mark.parametrize("place", ["stranger.parts", "FILE"])
def test_parts_are_named_by_module_or_file(stranger: Path, tmp_path: Path, place: str) -> None:
    place = str(stranger) if place == "FILE" else place
    (source,) = find_sources(f"{place}:VENUE:hard")
    assert (source.path, source.venue) == ("hard", f"{place}:VENUE")
    assert {task.venue for task in load_sources([source])} == {f"{place}:VENUE"}
    made = agent_of(config(agent=f"{place}:Agent"))
    assert isinstance(made, Program) and (made.name, made.program) == ("stranger", "stranger")
    assert {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}.items() <= made.environment("k").items()
    check_agent(config(agent=f"{place}:Agent"))
    there = environment_config(f"{place}:Environment", {"override_memory_mb": 9}, write_task(tmp_path / "a"), "run")
    assert there.import_path is not None and there.import_path.endswith(":Environment")
    assert (there.type, there.override_memory_mb) == (None, 9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"agent": "codexx"},
            "agent=codexx: unknown; did you mean codex.; one of mini-swe-agent, .*; or give MODULE:N",
        ),
        ({"agent": "math:pi"}, "agent=math:pi: no agent for containers; give a subclass of harbor"),
        ({"agent": "nowhere.py:Agent"}, "agent=nowhere.py:Agent: there is no file"),
        ({"hosts": "slurm"}, "hosts=slurm: unknown; one of ray"),
    ],
)
def test_an_unknown_part_is_refused_with_the_known_ones(given: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        brought(one := config(**given), [])
        agent_of(one)


def test_a_wrong_name_is_refused_before_any_task_is_read() -> None:
    with pytest.raises(UserError) as refused:
        validate(config(agent="terminus2", hosts="rays"))
    first, second, *_ = str(refused.value).splitlines()
    assert first.startswith("agent=terminus2: unknown; did you mean terminus-2?; one of terminus-2, mini-swe-agent, ")
    assert second.startswith("hosts=rays: unknown; did you mean ray?; one of none, ray; or give MODULE:NAME")


def test_an_environment_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"environment_type=math:pi: no subclass of harbor.environments.base"):
        environment_config("math:pi", {}, write_task(tmp_path / "a"), "run")


def test_two_packages_with_one_name_are_refused(stranger: Path) -> None:
    other = stranger.parents[1] / "other-1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (other / "entry_points.txt").write_text("[harbortrainer.venues]\nguess = stranger.parts:VENUE\n")
    plugins._entries.cache_clear()
    with pytest.raises(UserError, match=r"guess: .*other and stranger|guess: .*stranger and other"):
        plugin("venues", "tasks_dir", "guess")
    plugins._entries.cache_clear()


def test_an_object_of_this_process_gets_a_name() -> None:
    offered = Program("mine", "stranger.parts:Agent", "mine")
    offer("agents", "mine", offered)
    try:
        assert agent_of(config(agent="mine")) is offered
        with pytest.raises(UserError, match="the name 'mine' is taken"):
            offer("agents", "mine", replace(offered, memory_mb=1))
    finally:
        plugins._offered.clear()
        forget()


def test_the_code_of_a_package_is_all_its_files(stranger: Path) -> None:
    before = plugin("agents", "agent", "strange").source
    (stranger.parent / "more.py").write_text("x = 1")
    plugin.cache_clear()
    after = plugin("agents", "agent", "strange").source
    assert before != after
    with pytest.raises(UserError, match="agent=strange: its code has changed since the run began"):
        plugins.check_same({"agent": plugin("agents", "agent", "strange")}, {"agent": before})


def test_an_error_within_a_part_is_raised_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        find_sources(f"{tmp_path}/broken.py:VENUE:x")


def test_a_folder_with_colons_stays_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a.py:b:c"
    folder.mkdir()
    assert find_sources(str(folder))[0].venue == "harbor"
