"""A pytest plugin: tests in processes that are forked when all tests are collected, so imports are paid once.

`-p tests.support.forked --forks N`. A file's tests run in one process; it takes the next file when it is done with one.
"""

import getpass
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

NUMBER = 4  # bytes of a file's number in the queue
CRASHED = "a process of the tests ended with status {} at {}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=1, help="processes that are forked to run the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs the tests; the processes below return from here too, and finish as any session does."""
    option = session.config.option
    if option.forks < 2 or option.collectonly or option.usepdb or session.testsfailed:
        return None
    files = [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
    files.sort(key=len, reverse=True)  # what is left at the end is short
    queue, filled = os.pipe()
    os.write(filled, b"".join(number.to_bytes(NUMBER) for number in range(len(files))))
    os.close(filled)
    reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
    reporter.flush()  # or each process would print it again
    processes: dict[Connection, Process] = {}
    for number in range(min(option.forks, len(files))):
        told, tell = Pipe(duplex=False)
        if not (pid := os.fork()):
            for other in (told, *processes):
                other.close()  # a process whose reader is gone ends
            _become(session.config, number, tell)
            _run(session, files, queue)
            return True
        tell.close()
        processes[told] = Process(f"gw{number}", pid)
    _follow(session, processes, queue)
    return True


class Process:
    """What is known of one of the processes."""

    def __init__(self, name: str, pid: int) -> None:
        self.pid, self.at, self.done = pid, "its start", False
        worker = {"id": name, "version_info": sys.version_info, "sysplatform": sys.platform}
        worker["executable"] = sys.executable
        self.node = SimpleNamespace(gateway=SimpleNamespace(id=name), workerinfo=worker)  # as pytest-xdist names it


class Teller:
    """Tells the process that started this one what becomes of each test."""

    def __init__(self, config: pytest.Config, tell: Connection) -> None:
        self._config, self._tell = config, tell

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell.send(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._tell.send(("report", hook.pytest_report_to_serializable(config=self._config, report=report)))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell.send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_sessionfinish(self) -> None:
        self._tell.send(("done", {}))


def _become(config: pytest.Config, number: int, tell: Connection) -> None:
    """Makes this process a worker as plugins know them: it prints nothing and has files of its own."""
    name = f"gw{number}"
    os.environ["PYTEST_XDIST_WORKER"] = name
    vars(config)["workerinput"] = {"workerid": name}  # the cache is another process's
    root = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir()))
    own = root / f"pytest-of-{getpass.getuser()}" / name
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own)
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    plugins.register(Teller(config, tell))
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are one with those of the processes beside this one
    capture.start_global_capturing()
    capture.suspend_global_capture()


def _run(session: pytest.Session, files: list[list[pytest.Item]], queue: int) -> None:
    items = _taken(files, queue)
    item = next(items, None)
    while item is not None and not (session.shouldfail or session.shouldstop):
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following


def _taken(files: list[list[pytest.Item]], queue: int) -> Iterator[pytest.Item]:
    while number := os.read(queue, NUMBER):
        yield from files[int.from_bytes(number)]


def _follow(session: pytest.Session, processes: dict[Connection, Process], queue: int) -> None:
    """Shows what the processes tell, until each has ended."""
    while processes:
        for told in wait(list(processes)):
            assert isinstance(told, Connection)
            try:
                _show(session.config, processes[told], *told.recv())
            except EOFError:
                _ended(session, processes.pop(told))
        if session.shouldfail or session.shouldstop:
            while os.read(queue, NUMBER):  # no process begins another file
                pass
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _show(config: pytest.Config, process: Process, kind: str, told: dict[str, Any]) -> None:
    if kind == "done":
        process.done = True
    elif kind == "report":
        report = config.hook.pytest_report_from_serializable(config=config, data=told)
        report.node = process.node
        config.hook.pytest_runtest_logreport(report=report)
    else:
        process.at = told["nodeid"]
        getattr(config.hook, kind)(**told)


def _ended(session: pytest.Session, process: Process) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
    if not process.done or status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        session.shouldfail = CRASHED.format(status, process.at)
