"""Which agents can run here, for `doctor docker`: what is packed, how they reach the policy, whether they start."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docker.types import LogConfig

from harbortrainer.bundled.agents.address import MOUNT
from harbortrainer.bundled.agents.listener import listener_problem
from harbortrainer.bundled.agents.program import Program
from harbortrainer.config import Config
from harbortrainer.docker.box.one_off import one_off
from harbortrainer.docker.checks.preflight import task_needs
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images.inventory import image_ids
from harbortrainer.errors import UserError
from harbortrainer.learning.agents import by_agent
from harbortrainer.plugins import known
from harbortrainer.run.agent_pack import packed_version
from harbortrainer.venues.harbor.container_agent import TERMINUS, agent_of, check_agent, named

START_SEC = 60  # for a program's help to be printed
_WORDS = 200
_KILLED = 137


def agent_lines(config: Config, tasks: Sequence[Path]) -> list[str]:
    """Return lines on the agents; the run's agent is started in the images of these tasks. Blocking.

    Raises UserError: the agent cannot run, or does not start. docker.errors.DockerException.
    """
    problem = listener_problem()
    way = f"a relay in their containers ({problem})" if problem else "a socket in their containers' network"
    lines = [f"agents: {TERMINUS} from this process; {', '.join(known('agents'))} through {way}"]
    if config.agents_dir is not None:
        lines.append(f"packed in {config.agents_dir}: {', '.join(_packed(config.agents_dir)) or 'none'}")
    check_agent(config)
    programs = [(one, agent) for one in by_agent(config) if isinstance(agent := agent_of(one), Program)]
    return [*lines, *(_started(one, program, tasks) for one, program in programs)]


def _packed(agents_dir: str) -> list[str]:
    """Agents with their versions and memory."""
    packed = {name: version for name in known("agents") if (version := packed_version(agents_dir, name))}
    return [f"{name} {version} ({named('agent', name).memory_mb} MB)" for name, version in packed.items()]


def _started(config: Config, program: Program, tasks: Sequence[Path]) -> str:
    """In how many images the program starts, within its task's memory. Raises UserError with a line for each other."""
    command = f'PATH="{MOUNT}/bin:$PATH"; {program.program} --help'
    images: dict[tuple[str, int], str] = {}  # and memory, to the name of a task
    missing = 0
    for task in tasks:
        name, made = next(iter(image_ids([task]).items()), ("", ""))
        missing += not made
        if made:
            memory = task_needs(task, config.environment_kwargs, program.memory_mb).memory_mb
            images.setdefault((name, memory), task.name)
    faults = [
        f"agent={program.name}: task {task}: {program.program} does not start in its image: {why}; pack it "
        "on a machine whose C library is as old as the image's, or install it in the image"
        for (image, memory), task in images.items()
        if (why := start_problem(image, command, program.mounts(config), memory))
    ]
    if faults:
        raise UserError("\n".join(faults))
    left = f"; {missing} tasks' images are not built yet and were not tried" if missing else ""
    return f"agent={program.name}: {program.program} starts in {len(images)} images{left}"


def start_problem(image: str, command: str, mounts: Sequence[Mapping[str, Any]], memory_mb: int) -> str:
    """Return why a command of a mounted program fails in an image, in one line; "" = it does not.

    Processor, C library and memory must suit it. `memory_mb`: 0 = no limit. Raises docker.errors.DockerException;
    requests.RequestException, also when it takes over START_SEC.
    """
    client, binds = engine(), [f"{mount['source']}:{mount['target']}:ro" for mount in mounts]
    limits = {"network_mode": "none", "binds": binds, "mem_limit": memory_mb << 20 or None, "pids_limit": 512}
    log = LogConfig(type="json-file", config={"max-size": "1m"})
    with one_off(image, "doctor", ["sh", "-c", command], log_config=log, **limits) as made:
        client.start(made)
        status = client.wait(made, timeout=START_SEC)["StatusCode"]
        output = client.logs(made).decode(errors="replace")
    if status == _KILLED:
        return f"it was killed with {memory_mb} MB of memory"
    return (" ".join(output.split())[-_WORDS:] or f"exit status {status}") if status else ""
