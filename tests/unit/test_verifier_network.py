"""A verifier that could not install: the network's fault without a grade, or the trial's with its grade."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from harbortrainer.docker.network import reach
from harbortrainer.docker.network.reach import Address, NetworkCheck, Reach, State, address_of, parse
from harbortrainer.venues.harbor import verifier_network
from harbortrainer.venues.harbor.verifier_network import (
    blames_network,
    is_networks_fault,
    named_addresses,
    scripted_addresses,
)
from tests.support.shapes import INSTALLING
from tests.support.task_folder import write_task

UP, CLOSED, UNKNOWN = State.REACHED, State.CLOSED, State.UNKNOWN
UV, APT = Address("uv.example", 443), Address("deb.example", 80)
INDEX, PROXY = Address("index.example", 443), Address("10.9.9.9", 3128)


@pytest.mark.parametrize(
    ("line", "host", "port"),
    [
        ("curl: (6) Could not resolve host: uv.example", "uv.example", 443),
        ("curl: (7) Failed to connect to 10.9.9.9 port 3128 after 0 ms: Could not connect to server", "10.9.9.9", 3128),
        (
            "W: Failed to fetch http://deb.example/debian/x  Temporary failure resolving 'deb.example'",
            "deb.example",
            80,
        ),
        ("Err:1 http://deb.example bookworm InRelease", "deb.example", 80),
        ("  Could not connect to deb.example:80 (1.2.3.4), connection timed out", "deb.example", 80),
        ("HTTPSConnectionPool(host='index.example', port=443): Max retries exceeded", "index.example", 443),
        ("  cause: Failed to fetch: `https://index.example/simple/pytest/`", "index.example", 443),
        ("wget: unable to resolve host address 'uv.example'", "uv.example", 443),
        ("npm ERR! code ENOTFOUND index.example", "index.example", 443),
        ("fatal: unable to access 'https://git.example:8443/x/': refused", "git.example", 8443),
    ],
)
def test_the_addresses_that_installers_complain_about_are_read(line: str, host: str, port: int) -> None:
    assert named_addresses(f"all is well at https://other.example/\n{line}\n") == {Address(host, port)}


def test_local_addresses_and_text_that_is_no_host_are_left_out() -> None:
    output = "curl: (7) Failed to connect to localhost port 80\nerror at http://127.0.0.1:3/ and http://$HOST/x\n"
    assert named_addresses(output) == set()
    for host, port in (("a;b", 1), ("a.b", 70000), ("-x", 1), ("a..b", 1), ("a" * 64, 1), ("a." * 127 + "b", 1)):
        assert address_of(host, port) is None


@pytest.mark.parametrize(
    ("scripted", "named", "states", "image", "blamed"),
    [
        ([UV], [UV], {UV: UP}, {}, False),  # the policy broke its container
        ([UV], [UV], {UV: UNKNOWN}, {}, True),  # no name resolves anywhere
        ([UV], [UV], {UV: CLOSED}, {}, True),
        ([UV], [Address("uv.example", 8)], {UV: UP}, {}, False),  # the same host: the script knows its port
        ([UV], [PROXY], {UV: UP, PROXY: CLOSED}, {}, False),  # a proxy that the policy has set
        ([UV], [INDEX], {UV: UP, INDEX: UNKNOWN}, {}, False),  # an index that does not exist: the policy's
        ([UV], [INDEX], {UV: UP, INDEX: CLOSED}, {}, True),  # an index that is down
        ([UV], [APT], {UV: UP, APT: CLOSED}, {APT: CLOSED}, True),  # the image's own mirror is down
        ([UV], [Address("deb.example", 443)], {UV: UP}, {APT: UP}, False),  # named without its port
        ([UV], [APT], {UV: UP, APT: UP}, {APT: UP}, False),
        ([], [INDEX], {INDEX: UP}, {APT: UP}, False),
        ([], [INDEX], {INDEX: UNKNOWN}, {APT: UP}, True),
        ([], [PROXY], {PROXY: CLOSED}, {APT: UP}, False),
        ([], [PROXY], {PROXY: CLOSED}, {APT: CLOSED}, True),
        ([], [], {}, {APT: UP}, False),
        ([], [], {}, {}, True),  # nothing that could be tried
    ],
)
def test_the_network_is_blamed_where_an_address_that_is_not_the_policys_cannot_be_reached(
    scripted: list[Address],
    named: list[Address],
    states: Mapping[Address, State],
    image: Mapping[Address, State],
    blamed: bool,
) -> None:
    assert blames_network(scripted, named, Reach(states, image)) is blamed


class Checked:
    """A check that answers `answer` and notes what it was asked."""

    def __init__(self, state: State | None) -> None:
        self.state = state
        self.asked: list[tuple[str | None, set[Address]]] = []

    async def __call__(self, image: str | None, addresses: Iterable[Address], _run_id: str) -> Reach | None:
        self.asked.append((image, set(addresses)))
        return None if self.state is None else Reach(dict.fromkeys(self.asked[-1][1], self.state))


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    async def image(*_: object) -> str:
        return "image"

    monkeypatch.setattr(verifier_network, "_image", image)
    (tmp_path / "trial" / "verifier").mkdir(parents=True)
    output = "curl: (6) Could not resolve host: uv.example\n/tests/test.sh: line 5: uvx: command not found\n"
    (tmp_path / "trial" / "verifier" / "test-stdout.txt").write_text(output)
    return tmp_path / "trial"


SEPARATE = '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\ndocker_image = "x"\n'
OFFLINE = '[environment]\nnetwork_mode = "no-network"\n'


@pytest.mark.parametrize(
    ("toml", "state", "fault", "checks"),
    [
        ("", UP, False, 1),
        ("", CLOSED, True, 1),
        ("", None, True, 1),  # Docker could not run the check: as before
        (OFFLINE, CLOSED, False, 0),
        (SEPARATE, UP, True, 0),  # no policy reaches that container
        (OFFLINE + '[verifier]\nnetwork_mode = "public"\n', CLOSED, True, 1),
    ],
)
async def test_whose_fault_it_is(
    trial: Path, tmp_path: Path, toml: str, state: State | None, fault: bool, checks: int
) -> None:
    task = write_task(tmp_path / "task", test=INSTALLING.format(address="https://uv.example"), toml=toml)
    assert scripted_addresses(task) == {UV}
    check = Checked(state)
    assert await is_networks_fault(task, trial, check, "run") is fault
    assert check.asked == [("image", {UV})] * checks


async def test_trials_that_fail_together_cause_one_container(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Address, ...]] = []

    async def from_container(_image: str, addresses: tuple[Address, ...], _run_id: str) -> Reach:
        started.append(addresses)
        await asyncio.sleep(0)
        return Reach(dict.fromkeys(addresses, UP))

    monkeypatch.setattr(reach, "from_container", from_container)
    check = NetworkCheck()
    found = await asyncio.gather(*(check("image", {UV, APT}, "run") for _ in range(8)))
    assert found == [Reach({APT: UP, UV: UP})] * 8 and started == [(APT, UV)]
    await check("other", {UV, APT}, "run")
    assert len(started) == 2
    monkeypatch.setattr(reach, "KEEP_SEC", 0.0)
    await check("image", {UV, APT}, "run")
    assert len(started) == 3


def test_the_containers_lines_are_read_and_others_left_out() -> None:
    text = "asked uv.example 443 reached\nimage deb.example 80 closed\nasked x y reached\nnoise\nasked a.b 1 wrong\n"
    assert parse(text) == Reach({UV: UP}, {APT: CLOSED})


async def test_without_an_image_this_process_tries(unused_tcp_port: int) -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    up = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    down = Address("127.0.0.1", unused_tcp_port)
    async with server:
        found = await NetworkCheck()(None, [up, down], "run")
    assert found is not None and found.states == {up: UP, down: CLOSED}
