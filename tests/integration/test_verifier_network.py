"""A policy that breaks its container's network keeps its grade; a network that is down leaves the trial without one."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbortrainer.docker.network.bridge import forget_network
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.tasks.folders import digest
from harbortrainer.tasks.task import Task
from tests.support.outside import PORT, name_server, run, web_server
from tests.support.own_daemon import OwnDaemon, own_daemon
from tests.support.task_folder import BASE, write_task
from tests.support.trial_parts import SOLVE, answer, local_host, request

pytestmark = [
    pytest.mark.usefixtures("docker_ready"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a daemon of the test's own needs root"),
]
OUTSIDE, NAME = "198.51.100.2", "outside.test"
BREAK = [answer(": > /etc/resolv.conf\n"), answer(complete=True), answer(complete=True)]
TEST = f"""curl -LsSf http://{NAME}:{PORT}/uv/install.sh | sh
uvx pytest
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
CURL = r"""#!/usr/bin/perl
use IO::Socket::INET;
my ($h, $p, $f) = (grep { /^http/ } @ARGV)[0] =~ m{http://([^:/]+):(\d+)(/.*)};
gethostbyname($h) or do { print STDERR "curl: (6) Could not resolve host: $h\n"; exit 6 };
my $s = IO::Socket::INET->new(PeerAddr => $h, PeerPort => $p, Timeout => 60)
    or do { print STDERR "curl: (7) Failed to connect to $h port $p\n"; exit 7 };
print $s "GET $f HTTP/1.0\r\n\r\n";
my $b = join "", <$s>;
$b =~ m{^HTTP/\S+ 200} or do { print STDERR "curl: (22) The requested URL returned error\n"; exit 22 };
$b =~ s/.*?\r\n\r\n//s;
print $b;
"""
INSTALL = r"""printf '#!/bin/sh\ngrep -qx Hello hello.txt && echo "1 passed"\n' > /usr/local/bin/uvx
chmod +x /usr/local/bin/uvx
"""


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnDaemon]:
    """A daemon whose containers ask a name server outside."""
    with own_daemon("harbortrainer/base:bookworm", flags=[f"--dns={OUTSIDE}"]) as one:
        monkeypatch.setenv("DOCKER_HOST", one.host)
        run(*one.inside, "ip", "addr", "add", f"{OUTSIDE}/32", "dev", "lo")
        yield one
        forget_network()


@pytest.mark.nightly
async def test_only_a_network_that_is_down_takes_the_grade(tmp_path: Path, daemon: OwnDaemon) -> None:
    (tmp_path / "served" / "uv").mkdir(parents=True)
    (tmp_path / "served" / "uv" / "install.sh").write_text(INSTALL)
    dockerfile = BASE + "WORKDIR /app\nCOPY curl /usr/local/bin/curl\nRUN chmod +x /usr/local/bin/curl\n"
    path = write_task(tmp_path / "task", dockerfile=dockerfile, test=TEST, files={"environment/curl": CURL})
    task = Task("task", path, digest(path))

    async def trial(name: str, answers: list[str]) -> Trajectory:
        host, _ = local_host(answers)
        return await host.run(request(task, tmp_path, name))

    with name_server(OUTSIDE, NAME, *daemon.inside):
        with web_server(tmp_path / "served", OUTSIDE, *daemon.inside):
            solved, broken = await asyncio.gather(trial("s000000-p00-g00", SOLVE), trial("s000000-p00-g01", BREAK))
            (tmp_path / "served" / "uv" / "install.sh").unlink()
            refused = await trial("s000000-p00-g02", SOLVE)
        down = await trial("s000000-p00-g03", BREAK)
    assert (solved.reward, solved.detail) == (1.0, "")
    assert (broken.outcome, broken.reward) == (Outcome.COMPLETED, 0.0)
    assert "so the grade stands" in broken.detail
    for lost in (refused, down):  # a server that answers with errors is no better than none
        assert (lost.outcome, lost.reward) == (Outcome.VERIFIER_ERROR, None)
        assert "the verifier could not install" in lost.detail
