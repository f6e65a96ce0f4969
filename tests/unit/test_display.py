"""What is left on a terminal, in a pipe and in the log file by a run that says things, and by libraries that do."""

import asyncio
import contextlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbortrainer.config import Config
from harbortrainer.errors import one_line
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.rollout.gates import TrialState
from harbortrainer.run.directory import RunDirectory
from harbortrainer.stopping import PIPE_STATUS, SIGNAL_STATUS, Stop
from harbortrainer.watch import capture
from harbortrainer.watch.display import Display
from tests.support.pty_parts import on_terminal
from tests.support.terminal import ROW, Pane, Terminal, console_of, trajectory


@pytest.fixture
def terminal() -> Terminal:
    return Terminal(200, 24)


@pytest.fixture
def quiet_root() -> Iterator[None]:
    """As `harbortrainer train` sets the log up: one handler of ours, to stderr."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    root.addHandler(handler)
    yield
    root.removeHandler(handler)
    assert root.handlers == before


def told(display: Display, run: RunDirectory) -> None:
    """What happens in a run: lines of ours, chatter of others."""
    run.path.mkdir(exist_ok=True)
    display.keep_log(run, 3)
    display.say(f"run directory {run.path}")
    with display.trials("step 0", 4) as finished:
        display.watcher.moved("s000000-p00-g00", TrialState.SAMPLING)
        finished(trajectory("s000000-p00-g00", 1.0))
        print("chatter on stdout")
        print("chatter on stderr", file=sys.stderr)
        with warnings.catch_warnings(action="default"):
            warnings.warn("a warning of Python", stacklevel=1)
        logging.getLogger("tinker").warning("chatter of tinker")
        logging.getLogger("harbortrainer.harbor").warning("chatter of Harbor")
        logging.getLogger("harbortrainer").warning("trial x is replaced: \x1b[2J no disk")
        logging.getLogger("harbortrainer").error("worse")
        display.say("checkpoint after step 0: tinker://x")
    display.step(1, 3, ROW)


def test_on_a_terminal_ours_stays_and_the_panel_goes(tmp_path: Path, terminal: Terminal, quiet_root: None) -> None:
    run = RunDirectory(tmp_path / "run")
    with Display(console_of(Pane(terminal))) as display:
        told(display, run)
        assert "Ctrl-C" in terminal.text
    shown = [row[11:] for row in terminal.text.splitlines() if row.startswith("[")]
    assert shown[1:] == [
        "WARNING: trial x is replaced: \N{REPLACEMENT CHARACTER}[2J no disk",
        "ERROR: worse",
        "checkpoint after step 0: tinker://x",
        "step 1/3  reward 0.250  groups with signal 1/2  trials 4  turns 2.0  sample 80.0s  update 10.0s",
    ]
    assert terminal.text.startswith("[  0:") and "Ctrl-C" not in terminal.text and terminal.cursor_shown
    log = (run.path / capture.NAME).read_text()
    for text in ("chatter on stdout", "chatter on stderr", "a warning of Python", "chatter of tinker", "Harbor"):
        assert text in log and text not in terminal.text


def test_without_a_live_view(tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet_root: None) -> None:
    out = ("run directory", "checkpoint after", "step 1/3")
    err = ("WARNING: trial x", "ERROR: worse")
    with Display() as display:
        told(display, RunDirectory(tmp_path / "run"))
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert all(line[11:].startswith(text) for line, text in zip(said.out.splitlines(), out, strict=True)), said.out
    assert all(line.startswith(text) for line, text in zip(said.err.splitlines(), err, strict=True)), said.err


@pytest.mark.parametrize("live", [True, False])
def test_what_a_container_says_forges_no_line(
    tmp_path: Path, terminal: Terminal, capsys: pytest.CaptureFixture[str], quiet_root: None, live: bool
) -> None:
    forged = "x\x1b[1A\r\n[  9:59.9] step 9/9  reward 1.000\nWARNING: the disk is full"
    lost = Trajectory("t", "s000000-p00-g00", (), None, Outcome.INFRASTRUCTURE_ERROR, forged)
    with Display(console_of(Pane(terminal))) if live else Display() as display:
        display.keep_log(RunDirectory(tmp_path))
        with display.trials("step 0", 1) as finished:
            finished(lost)
            logging.getLogger("harbortrainer").warning("trial x is dropped: %s", forged)
        shown = terminal.text if live else "".join(capsys.readouterr())
    shown += (tmp_path / capture.NAME).read_text()
    assert shown.count("step 9/9") >= 2 and not [
        line for line in shown.splitlines() if line.startswith(("[  9:59.9]", "WARNING: the disk"))
    ]
    assert one_line(f"a\n{forged}").startswith("a x\N{REPLACEMENT CHARACTER}[1A [ 9:59.9]")


def test_the_terminal_is_left_clean_by_an_error(terminal: Terminal) -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(RuntimeError), Display(console_of(Pane(terminal))) as display:
        display.say("before")
        raise RuntimeError
    assert terminal.text.endswith("before") and len(terminal.text.splitlines()) == 1 and terminal.cursor_shown
    assert (sys.stdout, sys.stderr) == before
    display.say("after")
    assert terminal.text.splitlines()[1].endswith("after"), "it still prints"


def test_a_printed_traceback_is_told(tmp_path: Path, terminal: Terminal) -> None:
    run = RunDirectory(tmp_path)
    with Display(console_of(Pane(terminal))) as display:
        display.keep_log(run)
        try:
            raise ValueError("of a library")
        except ValueError:
            traceback.print_exc()
        logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: x")
    assert "ERROR: a traceback was printed; it is in run.log" in terminal.text
    assert "ERROR: Task exception was never retrieved (the rest is in run.log)" in terminal.text
    assert "of a library" not in terminal.text and "of a library" in (tmp_path / capture.NAME).read_text()


LEFT = """
import asyncio, os, signal
from harbortrainer import stopping
from harbortrainer.config import Config
from harbortrainer.stopping import Stop
from harbortrainer.watch.display import Display

async def main():
    stop = Stop()
    stop.resume_hint = "resume with: x"
    with Display() as display, stopping.signals_to(stop), stop.polled():
        display.follow(stop, trials=True)
        stop.limit(Config(model_name="", tasks_dir=""), display.say)
        with display.trials("step 0", 4):
            os.kill(os.getpid(), signal.SIGINT)
            await stop.wait()
            stopping.ONE_PRESS_SEC = 0
            display._live.draw()
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.nightly
def test_a_second_ctrl_c_leaves_the_terminal_usable() -> None:
    status, sent = on_terminal([sys.executable, "-c", LEFT], columns=120, rows=40)
    terminal = Terminal(120, 40)
    terminal.feed(sent)
    assert status == 130 and terminal.cursor_shown, sent
    lines = terminal.text.splitlines()
    assert "SIGINT: running trials are cancelled, then the weights are saved" in lines[0]
    assert (
        lines[-2].startswith("stop    SIGINT: running trials are cancelled,")
        and lines[-1] == "stopped immediately; resume with: x"
    )


def test_an_evaluation_beside_a_batch_is_counted_with_it(terminal: Terminal) -> None:
    display = Display(console_of(Pane(terminal)))
    with display.trials("step 3", 4):
        with display.trials("eval 3", 2):
            assert display._state.doing == "evaluation after step 3"
        assert display._state.doing == "step 4: sampling"
    with display.trials("eval 3", 2), display.trials("step 3", 4) as finished:
        finished(trajectory("e000003-p00-g00", 1.0))
        finished(trajectory("s000003-p00-g00", 0.0))
        batch = display._state.batch
        assert batch is not None and (batch.done, batch.total, len(batch.groups), batch.reward) == (2, 4, 1, 0.0)
    assert display._state.doing == "saving"


async def test_the_panel_says_what_a_stop_does(terminal: Terminal) -> None:
    stop, display = Stop(), Display(console_of(Pane(terminal)))
    display.follow(stop, trials=True)
    assert "before it begins" in display._notes()["Ctrl-C"]
    with display.trials("step 0", 4):
        assert "cancels running trials, saves the weights" in display._notes()["Ctrl-C"]
        stop.request("SIGINT", 130)
        notes = display._notes()
    assert list(notes) == ["stop"] and notes["stop"].startswith(
        "SIGINT: running trials are cancelled, then the weights"
    )
    assert notes["stop"].endswith("a second Ctrl-C leaves at once")


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    (run.path / capture.NAME).symlink_to("/dev/full")
    with Display() as display:
        display.keep_log(run)
        for _ in range(3):
            display.say("goes on")
    said = capsys.readouterr()
    assert said.out.count("goes on") == 3 and "Traceback" not in said.err
    assert said.err.count("run.log cannot be written: No space left on device; the run continues without it") == 1


@pytest.mark.parametrize("asked", [False, True])
async def test_an_output_that_nothing_reads_stops_the_run_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """Of `train | tee LOG` Ctrl-C ends both; the weights are saved all the same."""
    reader, writer = os.pipe()
    os.close(reader)
    stop, work = Stop(), asyncio.current_task()
    assert work is not None
    stop.cancels(work)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with Display() as display, stop.polled():
            display.follow(stop, trials=True)
            display.keep_log(RunDirectory(tmp_path))
            stop.limit(Config(model_name="", tasks_dir=""), display.say)
            if asked:
                stop.request("SIGINT", SIGNAL_STATUS)
            display.say("goes on")
            await stop.wait()
    assert (stop.why, stop.status) == (
        ("SIGINT", SIGNAL_STATUS) if asked else ("the output cannot be written (Broken pipe)", PIPE_STATUS)
    )
    assert capsys.readouterr().err.count("WARNING: the output cannot be written (Broken pipe); the run ends") == 1
    assert "goes on" in (tmp_path / capture.NAME).read_text()


def test_the_log_is_bounded_and_goes_on(tmp_path: Path) -> None:
    for process in range(2):
        with Display() as display:
            logging.getLogger("harbortrainer").info("early %d", process)
            display.keep_log(RunDirectory(tmp_path))
            display.say("two\nlines")
    text = (tmp_path / capture.NAME).read_text()
    assert "early 0" in text and "early 1" in text and "two\n    lines" in text
    with contextlib.closing(capture.RunLog(print)) as log:
        assert log.maxBytes == capture.MAX_BYTES
        log.maxBytes = 2000
        log.open(tmp_path)
        for _ in range(200):
            log.emit(logging.makeLogRecord({"msg": "x" * 50}))
    files = list(tmp_path.glob(f"{capture.NAME}*"))
    assert len(files) == 3 and all(file.stat().st_size <= 2000 for file in files)
