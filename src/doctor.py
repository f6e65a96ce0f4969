"""`python -m src.doctor backend=skyrl-tx skyrl_tx_url=URL`: what a Tinker API does with what it is sent.

`python -m src.doctor parity A=URL B=URL`: whether two of them do the same.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz
import tinker
from rich.console import Console

from src.backend.connect import api_key, server_url
from src.backend.faults import CALL_LIMIT_SEC, awaited
from src.backend.health import check_health
from src.backend.kind import kind_of
from src.command_line import read_arguments, run_command
from src.config import Backend, Config
from src.errors import UserError
from src.probe.parity import ParityReport, compare
from src.probe.probe import load_or_probe
from src.probe.report import ServerReport
from src.probe.table import show, show_parity
from src.run.files import replace_text

HELP = "python -m src.doctor field=value ...   what a Tinker API does, measured on throw-away weights"
PARITY_HELP = "python -m src.doctor parity A=URL B=URL ...   whether two servers train and sample alike; if not, exit 1"
JSON = "file for the same as JSON; - = standard output, instead of the table; None = table only"


@chz.chz
class ProbeArgs:
    backend: Backend = chz.field(default="tinker", doc="tinker (cloud) or skyrl-tx (self-hosted)")
    skyrl_tx_url: str | None = chz.field(
        default=None, doc="URL of the self-hosted server; None = environment variable SKYRL_TX_URL"
    )
    tinker_base_url: str | None = chz.field(default=None, doc="URL of Tinker cloud; None = the SDK's own")
    model_name: str | None = chz.field(default=None, doc="base model; None = the first that the server names")
    json: str | None = chz.field(default=None, doc=JSON)
    refresh: bool = chz.field(default=True, doc="measure again; false = take what was measured before, if anything was")


@chz.chz
class ParityArgs:
    A: str = chz.field(doc="URL of a server; tinker = Tinker cloud")
    B: str = chz.field(doc="URL of the other one; tinker = Tinker cloud")
    model_name: str | None = chz.field(default=None, doc="base model; None = the first that A names")
    steps: int = chz.field(default=4, doc="optimizer steps")
    json: str | None = chz.field(default=None, doc=JSON)


@dataclass(frozen=True, slots=True)
class Server:
    """`model_name`: as asked for, else the first that the server names."""

    service: tinker.ServiceClient
    url: str
    model_name: str


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 measured (parity: equal), 1 parity: they differ, 2 a mistake, told in a line, 130 stopped."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.CRITICAL)
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _command(arguments))


def _command(arguments: list[str]) -> Coroutine[Any, Any, int]:
    if arguments[:1] == ["parity"]:
        return _parity(read_arguments(ParityArgs, arguments[1:], PARITY_HELP))
    return _probe(read_arguments(ProbeArgs, arguments, f"{HELP}\n{PARITY_HELP}"))


async def _probe(args: ProbeArgs) -> int:
    config = Config(
        backend=args.backend,
        skyrl_tx_url=args.skyrl_tx_url,
        tinker_base_url=args.tinker_base_url,
        model_name=args.model_name or "",
        tasks_dir="",
    )
    server = await _open(config)
    _give(await load_or_probe(server.service, server.url, server.model_name, args.refresh), args.json)
    return 0


async def _parity(args: ParityArgs) -> int:
    if args.steps < 1:
        raise UserError(f"steps={args.steps}: must be above 0")
    a = await _open(_side(args.A, args.model_name))
    b = await _open(_side(args.B, args.model_name))
    report = await compare(a.service, a.url, a.model_name, b.service, b.url, b.model_name, args.steps)
    _give(report, args.json)
    return 0 if report.equal else 1


def _side(url: str, model_name: str | None) -> Config:
    if url == "tinker":
        return Config(backend="tinker", model_name=model_name or "", tasks_dir="")
    return Config(backend="skyrl-tx", skyrl_tx_url=url, model_name=model_name or "", tasks_dir="")


async def _open(config: Config) -> Server:
    """Raises UserError when URL, key, health or model are wrong."""
    kind, url = kind_of(config), server_url(config)
    key = api_key(kind)
    await check_health(url, config)
    if not kind.needs_key:
        os.environ.setdefault("TINKER_TELEMETRY", "0")
    service = await awaited(f"opening a session at {url}", asyncio.to_thread(_service, url, key), CALL_LIMIT_SEC)
    rest = await awaited(f"connecting to {url}", asyncio.to_thread(_rest, url, key), CALL_LIMIT_SEC)
    answer = await awaited("server capabilities", rest.get_server_capabilities(), CALL_LIMIT_SEC)
    served = [model.model_name for model in answer.supported_models if model.model_name]
    model = config.model_name or next(iter(served), "")
    if not model:
        raise UserError("model_name: the server names no model; give model_name=NAME")
    if served and model not in served:
        raise UserError(f"model_name={model}: the server serves {', '.join(sorted(served)[:8])}; choose one of them")
    return Server(service, url, model)


# The SDK waits for its first answers in the calling thread: not one that runs an event loop.
def _service(url: str, key: str) -> tinker.ServiceClient:
    service = tinker.ServiceClient(base_url=url, api_key=key)
    _ = service.holder  # opens the session
    return service


def _rest(url: str, key: str) -> tinker.RestClient:
    return tinker.RestClient(base_url=url, api_key=key)


def _give(report: ServerReport | ParityReport, json: str | None) -> None:
    if json == "-":
        print(report.to_json())
        return
    if json:
        path = Path(json)
        try:
            replace_text(path, report.to_json())
        except OSError as error:
            raise UserError(f"json={json}: cannot be written ({error.strerror}); name a file in a folder") from None
    console = Console(highlight=False)
    show_parity(report, console) if isinstance(report, ParityReport) else show(report, console)


if __name__ == "__main__":
    sys.exit(main())
