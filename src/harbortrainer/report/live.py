"""The command `watch`: the report of runs as they are now, for browsers on this machine."""

import asyncio
import gzip
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn import Config, Server

from harbortrainer.errors import UserError
from harbortrainer.report.arguments import WatchArgs
from harbortrainer.report.panel import Pieces, panel, read_inside
from harbortrainer.report.run import RunRecord, read_run
from harbortrainer.report.trials import TrialRow
from harbortrainer.report.write import ODD, as_json, distinct, page, page_data
from harbortrainer.run.directory import base_model

HOST = "127.0.0.1"
REST = 9  # times as long as reading the runs took, they are not read again: a tenth of a core at most
FILES = ("ledger.jsonl", "metrics.jsonl", "checkpoints.jsonl", "config.json", "config_changes.jsonl", "effective.json")
MOST_BYTES, MOST_NAMES = 4_000_000, 500  # of a file that is shown; in a list of a trial's files


class Feed:
    """Runs as JSON of the page, read again when one of their files has changed. Its methods block."""

    def __init__(self, runs: Sequence[Path], rest: float = REST) -> None:
        """Raises UserError for a folder without a run, or a damaged file."""
        self._runs, self._lock, self._next, self._rest = runs, threading.Lock(), 0.0, rest
        self._stamp = self._stamped()
        self._read()
        self.pieces = [Pieces(base_model(one.run) if one.run.config.is_file() else "") for one in self.records]

    def data(self) -> tuple[str, bytes]:
        """Return a name of this state, and the gzipped JSON. Runs that cannot be read just now stay as they were."""
        with self._lock:
            if time.monotonic() >= self._next and (stamp := self._stamped()) != self._stamp:
                try:
                    self._read()
                    self._stamp = stamp
                except (UserError, OSError, *ODD):  # a line is half written
                    self._next = time.monotonic() + 1
            return self._name, self._body

    def trial(self, run: int, index: int) -> tuple[RunRecord, TrialRow]:
        """Return it as it is now. Raises HTTPException."""
        self.data()
        try:
            record = self.records[run]
            return record, record.trials[index]
        except IndexError:
            raise HTTPException(404) from None

    def _read(self) -> None:
        began = time.monotonic()
        records = [read_run(path) for path in self._runs]
        for number, record in enumerate(records):
            record.shown["root"] = f"runs/{number}/"
            record.shown["panels"] = {at: f"/{number}/{at}" for at, one in enumerate(record.trials) if one.folder}
        self._body = gzip.compress(as_json(page_data(records)).encode(), 3)
        self.records = records
        self._name = f'"{time.time_ns()}"'
        self._next = time.monotonic() + self._rest * (time.monotonic() - began)

    def _stamped(self) -> list[tuple[int, int]]:
        files = (file for run in self._runs for name in FILES if (file := run / name).exists())
        return [(found.st_mtime_ns, found.st_size) for found in map(Path.stat, files)]


def application(feed: Feed, title: str) -> Starlette:
    """`/` the page, `/data` the runs, `/panel/RUN/TRIAL` a trial in full, `/runs/…` files of a trial's folder."""

    def document(request: Request) -> Response:
        return HTMLResponse(page(title, {}))

    def data(request: Request) -> Response:
        name, body = feed.data()
        head = {"ETag": name, "Cache-Control": "no-cache", "Content-Encoding": "gzip"}
        if request.headers.get("if-none-match") == name:
            return Response(status_code=304, headers={"ETag": name})
        return Response(body, media_type="application/json", headers=head)

    def shown(request: Request) -> Response:
        number: int = request.path_params["run"]
        record, trial = feed.trial(number, request.path_params["trial"])
        found = panel(record.run.path, trial, feed.pieces[number]) | {"row": asdict(trial)}
        return Response(as_json(found), media_type="application/json", headers={"Cache-Control": "no-store"})

    def file(request: Request) -> Response:
        words = request.path_params
        record = feed.trial(words["run"], 0)[0]
        if not any((one.folder, one.name) == (words["batch"], words["trial"]) for one in record.trials):
            raise HTTPException(404)
        folder = record.run.path / "rollouts" / words["batch"] / words["trial"]
        if not words["path"]:
            return _plain("\n".join(_names(folder)).encode())
        found = read_inside(folder, folder / words["path"], MOST_BYTES)
        if found is None:
            raise HTTPException(404)
        return _plain(found[0])

    return Starlette(
        routes=[
            Route("/", document),
            Route("/data", data),
            Route("/panel/{run:int}/{trial:int}", shown),
            Route("/runs/{run:int}/rollouts/{batch}/{trial}/{path:path}", file),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],  # no other name leads here
    )


def _plain(content: bytes) -> Response:
    """Never markup, whatever a trial has written."""
    return PlainTextResponse(content, headers={"X-Content-Type-Options": "nosniff"})


def _names(folder: Path) -> list[str]:
    found = (Path(place, name).relative_to(folder) for place, _, names in os.walk(folder) for name in names)
    return sorted(str(name) for _, name in zip(range(MOST_NAMES), found, strict=False))


async def watch(args: WatchArgs) -> None:
    """Serve until it is stopped. Raises UserError for a folder without a run, one named twice, or a port in use."""
    runs = distinct(args.run_dir)
    feed = await asyncio.to_thread(Feed, runs)
    try:
        listener = socket.create_server((HOST, args.port))
    except OSError as error:
        raise UserError(f"port={args.port}: {error.strerror}; give another one, or 0 for a free one") from None
    app = application(feed, " · ".join(record.run.name for record in feed.records))
    server = Server(Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)  # leaves signals alone
    thread.start()
    print(f"http://{HOST}:{listener.getsockname()[1]}/ until Ctrl-C", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        server.should_exit = True
        await asyncio.to_thread(thread.join, 3)
