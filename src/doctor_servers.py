"""The doctor's commands for Tinker APIs: what one does with what it is sent, and whether two do the same."""

import os
from dataclasses import dataclass

import tinker
from rich.console import Console

from src.backend.connect import api_key, server_url
from src.backend.faults import awaited
from src.backend.health import check_health
from src.backend.kind import kind_of
from src.backend.limits import CALL_LIMIT_SEC
from src.cli.output import give_json
from src.config import Config
from src.daemon_thread import in_daemon_thread
from src.doctor_arguments import ParityArgs, ServerArgs
from src.errors import UserError
from src.probe.parity import ParityReport, compare
from src.probe.probe import load_or_probe
from src.probe.report import ServerReport
from src.probe.table import show, show_parity


@dataclass(frozen=True, slots=True)
class Server:
    """`model_name`: as asked for, else the first that the server names."""

    service: tinker.ServiceClient
    url: str
    model_name: str


async def probe(args: ServerArgs) -> int:
    server = await _open(_config(args) if args.url is None else _side(args.url, args.model_name))
    _give(await load_or_probe(server.service, server.url, server.model_name, args.refresh), args.json)
    return 0


async def parity(args: ParityArgs) -> int:
    a = await _open(_side(args.A, args.model_name))
    b = await _open(_side(args.B, args.model_name))
    report = await compare(a.service, a.url, a.model_name, b.service, b.url, b.model_name, args.steps)
    _give(report, args.json)
    return 0 if report.equal else 1


def _config(args: ServerArgs) -> Config:
    return Config(
        backend=args.backend,
        skyrl_tx_url=args.skyrl_tx_url,
        tinker_base_url=args.tinker_base_url,
        model_name=args.model_name or "",
        tasks_dir="",
    )


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
    service = await awaited(f"opening a session at {url}", in_daemon_thread(_service, url, key), CALL_LIMIT_SEC)
    rest = await awaited(f"connecting to {url}", in_daemon_thread(_rest, url, key), CALL_LIMIT_SEC)
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
    if give_json(report.to_json(), json):
        return
    console = Console(highlight=False)
    show_parity(report, console) if isinstance(report, ParityReport) else show(report, console)
