"""Turns in a real terminal: a command is waited for to its end, and no longer; the screen is told as by Harbor."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio
from harbor.models.trial.paths import EnvironmentPaths

from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.daemon import call, engine
from harbortrainer.docker.keeping.cleaning import drain
from harbortrainer.venues.harbor.terminus import Command, KeysRefused, Terminal, TmuxSession
from tests.support.docker_parts import a_run, containers, environment_of, write_task

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG, SOON = 900.0, 600.0  # seconds: the duration asked for, and far more than the command takes on a slow machine
RUN = a_run("test-turns")
NUMBERS = count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment(
    docker_ready: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[DockerEngineEnvironment]:
    environment = environment_of(write_task(tmp_path_factory.mktemp("turns") / "turns"), RUN)
    await environment.start(force_build=False)
    yield environment
    await environment.stop(delete=True)
    await drain()


async def terminal_in(environment: DockerEngineEnvironment) -> Terminal:
    """A new session in the container, its first screen taken."""
    terminal = Terminal(
        session_name=f"turn-{next(NUMBERS):03}",
        environment=environment,
        logging_path=EnvironmentPaths.agent_dir / "pane",
        local_asciinema_recording_path=None,
        remote_asciinema_recording_path=None,
    )
    await terminal.start()
    await terminal.get_incremental_output()
    return terminal


async def turn(terminal: Terminal, *commands: tuple[str, float]) -> tuple[str, float]:
    """What the policy is shown, and the seconds it took."""
    started = time.monotonic()
    shown = await terminal.take_turn([Command(keys, seconds) for keys, seconds in commands])
    return shown, time.monotonic() - started


LINES = "sleep 1\necho first\nsleep 1\necho se''cond\n"
LONG_COMMAND = "sleep 1; echo " + "x" * 5000 + "; sleep 1; echo en''d\n"
PASTED = "cat > /tmp/pasted <<'EOF'\n" + ("y" * 99 + "\n") * 300 + "EOF\nwc -c /tmp/pasted\n"
ENDING = {
    "quick": ("echo o''k\n", "ok"),
    "sleep": ("sleep 2; echo wo''ke\n", "woke"),
    "loop": ("for i in 1 2 3 4; do sleep 0.4; done; echo loo''ped\n", "looped"),
    "pipeline": ("(sleep 1; echo a; sleep 1; echo b) | sort | tail -n 1 | sed s/b/pi''ped/\n", "piped"),
    "substitution": ("x=$(sleep 2; echo val''ue); echo $x\n", "value"),
    "substitutions": ("for i in 1 2 3; do x=$(sleep 0.5; echo $i); done; echo a''ll $x\n", "all 3"),
    "lines": (LINES, "second"),
    "subshell": ("(sleep 1; (sleep 1; echo in''ner))\n", "inner"),
    "heredoc": ("cat <<EOF | tee /tmp/h; sleep 1; wc -l /tmp/h\none\ntwo\nEOF\n", "2 /tmp/h"),
    "long": (LONG_COMMAND, "end"),
    "pasted": (PASTED, "30000 /tmp/pasted"),
    "million": ("seq 1000000; echo la''st\n", "last"),
    "builtins": ("for ((i = 0; i < 100000; i++)); do echo $i; done; echo la''st\n", "last"),
    "script": ("bash -c 'sleep 1; x=$(sleep 1); echo do''ne$x'\n", "done"),
    "many-prompts": ("".join(f"echo {i}\n" for i in range(40)) + "sleep 1\necho to''p\n", "top"),
    "fails": ("nosuchprogram; sleep 1; false\n", "not found"),
    "killed": ("sh -c 'sleep 1; kill -9 $$'\n", "Killed"),
    "coprocess-end": ("sleep 1 & sleep 2; wait; echo joi''ned\n", "joined"),
    "short-job": ("sleep 2 &\n", "[1]"),
}


async def test_a_command_is_waited_for_to_its_end_and_no_longer(environment: DockerEngineEnvironment) -> None:
    async def check(name: str, keys: str, sign: str) -> None:
        terminal = await terminal_in(environment)
        _, seconds = await turn(terminal, (keys, LONG))
        screen = await terminal.capture_pane(capture_entire=True)  # all: Harbor shows no more than it finds to be new
        assert sign in screen and screen.rstrip().endswith("#"), (name, screen[-2000:])
        assert seconds < SOON, name
        print(name, seconds)

    await asyncio.gather(*(check(name, *case) for name, case in ENDING.items()))


UNENDING = {
    "job": "sleep 50 &\n",
    "job-output": "(sleep 50; echo late) & echo now\n",
    "read": "read x\n",
    "read-time": "read -t 50 x\n",
    "fifo": "mkfifo /tmp/f$$; read x < /tmp/f$$\n",
    "cat": "cat\n",
    "raw": "stty raw; sleep 50\n",
    "script": "bash -c 'read x'\n",
    "stopped": "sleep 50\nC-z",
    "socket": "exec 5<>/dev/udp/127.0.0.1/9; read x <&5\n",
    "substitution": "x=$(sleep 50)\n",
}


async def test_what_has_not_ended_takes_its_whole_duration(environment: DockerEngineEnvironment) -> None:
    async def check(name: str, keys: str) -> None:
        _, seconds = await turn(await terminal_in(environment), (keys, 4.0))
        print(name, seconds)
        assert seconds >= 3.95, name

    await asyncio.gather(*(check(name, keys) for name, keys in UNENDING.items()))


@pytest.mark.nightly
async def test_nested_shells_ask_too(environment: DockerEngineEnvironment) -> None:
    async def check(start: str, prompt: str) -> None:
        terminal = await terminal_in(environment)
        for keys, sign in ((start, prompt), ("sleep 1; echo in''side\n", "inside"), ("exit; echo ba''ck\n", "root@")):
            _, seconds = await turn(terminal, (keys, LONG))
            screen = await terminal.capture_pane()
            assert sign in screen and seconds < SOON, (start, screen)

    starts = {"bash\n": "app#", "sh\n": "\n#\n", "su -s /bin/bash nobody\n": "nobody@"}
    await asyncio.gather(*(check(start, prompt) for start, prompt in starts.items()))


async def test_an_answer_of_several_commands(environment: DockerEngineEnvironment) -> None:
    terminal = await terminal_in(environment)
    commands = [("cat > notes\n", 2.0), ("some text\n", 0.5), ("C-d", LONG), ("sleep 1; cat notes\n", LONG)]
    shown, seconds = await turn(terminal, *commands, ("w" * 20_000, LONG), ("C-c", LONG), ("echo e''nd\n", LONG))
    assert shown.count("some text") >= 2 and shown.rstrip().splitlines()[-2].strip() == "end"
    assert seconds < SOON


async def test_interrupting_and_leaving_end_the_wait(environment: DockerEngineEnvironment) -> None:
    terminal = await terminal_in(environment)
    await turn(terminal, ("sleep 1000\n", 2.0))
    _, seconds = await turn(terminal, ("C-c", LONG))
    assert seconds < SOON
    _, seconds = await turn(terminal, ("exit\n", LONG))
    listed = await environment.exec("ps -ef", user="root")
    assert seconds < SOON and terminal.ended, (await terminal.capture_pane(), listed.stdout)


async def test_waiting_without_keys(environment: DockerEngineEnvironment) -> None:
    """What a policy that only waits waits for: the command that runs, or else the time."""
    terminal = await terminal_in(environment)
    _, seconds = await turn(terminal, ("", 1.5))
    assert seconds >= 1.45
    _, seconds = await turn(terminal, ("sleep 2; echo lo''ng\n", 0.2), ("", LONG))
    assert "long" in await terminal.capture_pane() and 1.9 < seconds < SOON


async def test_a_dash_in_the_pane_asks_too(environment: DockerEngineEnvironment) -> None:
    terminal = await terminal_in(environment)
    await turn(terminal, ("exec sh\n", LONG))
    _, seconds = await turn(terminal, ("sleep 2; x=$(sleep 1); echo lo''ng\n", LONG))
    assert "long" in await terminal.capture_pane() and 2.9 < seconds < SOON


SCREENS = {
    "text": "printf '%s\\n' one two three\n",
    "letters": "printf 'h\\303\\251llo \\346\\274\\242 \\342\\200\\250 x\\n   \\n'; tput setaf 1; echo red\n",
    "scrolled": "seq 3000\n",
    "nothing-new": "clear\n",
    "other-screen": "tput smcup; echo there\n",
    "cleared": "reset\n",
    "broken-bytes": "printf '\\377\\376 \\033[5;5Hhere\\n'\n",
}


async def test_the_policy_is_shown_what_harbor_shows(environment: DockerEngineEnvironment) -> None:
    """The same session read by Harbor's own code, in the same state, turn by turn."""
    terminal = await terminal_in(environment)
    name = terminal._session_name
    harbors = TmuxSession(name, environment, EnvironmentPaths.agent_dir / "pane", None, None)
    await harbors.get_incremental_output()
    for case, keys in SCREENS.items():
        shown, _ = await turn(terminal, (keys, LONG))
        assert shown == await harbors.get_incremental_output(), case


@pytest.mark.nightly
async def test_a_flood_is_bounded_and_does_not_slow_the_turns(environment: DockerEngineEnvironment) -> None:
    terminal = await terminal_in(environment)
    await turn(terminal, ("yes\n", 1.0))
    shown, seconds = await turn(terminal, ("", 0.1))
    assert len(shown) < 1_000_000 and seconds < SOON
    _, seconds = await turn(terminal, ("C-c", LONG), ("clear; head -c 300000000 /dev/zero | tr '\\0' x | fold\n", 2.0))
    assert seconds < LONG
    await turn(terminal, ("C-c", LONG))
    log = await environment.exec("stat -c %s /logs/agent/pane")
    assert int(log.stdout or 0) <= 2_000_000


@pytest.mark.parametrize("keys", ["a\0b", "\ud83d"])
async def test_keys_that_cannot_be_typed_are_refused(environment: DockerEngineEnvironment, keys: str) -> None:
    with pytest.raises(KeysRefused):
        await turn(await terminal_in(environment), (keys, 0.1))


async def test_a_container_that_is_stopped_is_no_doing_of_the_policy(environment: DockerEngineEnvironment) -> None:
    """The last test of the container."""
    terminal = await terminal_in(environment)
    running = asyncio.create_task(turn(terminal, ("sleep 1000\n", LONG)))
    await asyncio.sleep(0.5)
    for container in containers(RUN):
        await call(engine().kill, container)
    with pytest.raises((RuntimeError, OSError)):
        await running
    assert not terminal.ended
