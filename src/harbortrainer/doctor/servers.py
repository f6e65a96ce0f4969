"""The command `doctor server`: probes a Tinker API."""

import contextlib
import functools
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

from rich.console import Console

from harbortrainer.backend.connect import server_url
from harbortrainer.backend.contract import CALL_LIMIT_SEC, kind_of
from harbortrainer.backend.failing import first_contact
from harbortrainer.backend.faults import awaited
from harbortrainer.backend.health import check_health
from harbortrainer.backend.sessions import Session, api_key, open_rest, open_session, opened
from harbortrainer.cli.output import give_json
from harbortrainer.config import Config, ServerSettings
from harbortrainer.doctor.arguments import ServerArgs
from harbortrainer.errors import UserError
from harbortrainer.probe.probe import load_or_probe
from harbortrainer.probe.report import ServerReport, show
from harbortrainer.setting import settings

log = logging.getLogger("harbortrainer")


async def probe(args: ServerArgs) -> int:
    place = {name: getattr(args, name) for name in settings(ServerSettings)}
    config = _config(args.url, args.model_name, **place)
    url, key = server_url(config), api_key(kind_of(config))

    async def measured() -> ServerReport:
        async with _opened(config, url, key) as (session, model):
            progress = functools.partial(print, file=sys.stderr, flush=True)
            return await load_or_probe(session, model, args.refresh, progress)

    about = await check_health(url, config)
    report = await first_contact(url, measured(), about, known=kind_of(config).needs_key)
    if not give_json(report.to_json(), args.json):
        show(report, Console(highlight=False))
    return 0


def _config(url: str | None, model_name: str | None, **place: Any) -> Config:
    """`place`: the settings of the server where there is no URL."""
    if url is not None:
        place = {"backend": "tinker"} if url == "tinker" else {"backend": "skyrl-tx", "skyrl_tx_url": url}
    return Config(**place, model_name=model_name or "", tasks_dir="")


@contextlib.asynccontextmanager
async def _opened(config: Config, url: str, key: str) -> AsyncIterator[tuple[Session, str]]:
    """A session that ends with the block, and the model: the given one, else the first that the server names.

    Raises UserError for a wrong model.
    """
    rest = await open_rest(url, key)
    answer = await awaited("server capabilities", rest.get_server_capabilities(), CALL_LIMIT_SEC)
    served = [model.model_name for model in answer.supported_models if model.model_name]
    model = config.model_name or next(iter(served), "")
    if not model:
        raise UserError("model_name: the server names no model; give model_name=NAME")
    if served and model not in served:
        raise UserError(f"model_name={model}: the server serves {', '.join(sorted(served)[:8])}; choose one of them")
    async with opened(open_session(rest, url, key, log.warning)) as session:
        yield session, model
