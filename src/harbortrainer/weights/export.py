"""The command `export`: a checkpoint becomes a folder that transformers, peft and vLLM load."""

import asyncio
import contextlib
import shutil
from pathlib import Path

from harbortrainer.backend.connect import server_url
from harbortrainer.backend.contract import CALL_LIMIT_SEC, kind_of
from harbortrainer.backend.failing import first_contact
from harbortrainer.backend.faults import awaited
from harbortrainer.backend.sessions import api_key, opened
from harbortrainer.durable.disk import disk_errors
from harbortrainer.durable.files import write_json
from harbortrainer.errors import UserError
from harbortrainer.evaluation.policies import Subject, find_subject, refuse_elsewhere
from harbortrainer.run.directory import DATASET_FILE
from harbortrainer.tasks.split import SPLIT_FILE
from harbortrainer.training.outside import Outside
from harbortrainer.training.start import IDENTITY
from harbortrainer.weights.arguments import ExportArgs
from harbortrainer.weights.card import card
from harbortrainer.weights.fetch import fetch_adapter
from harbortrainer.weights.merge import check_merging, merge

CARD = "README.md"


async def export(args: ExportArgs, outside: Outside | None = None) -> int:
    """Write `to`, whole or not at all. Raises UserError."""
    outside = outside or Outside()
    subject = find_subject("checkpoint", args.checkpoint)
    if subject.path is None:
        raise UserError(f"checkpoint={args.checkpoint}: has no weights of its own; give RUN_DIR or RUN_DIR@STEP")
    refuse_elsewhere(subject, args.backend)
    to = Path(args.to).expanduser().resolve()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"to={args.to}: exists; choose a folder that is new or empty")
    if args.merged:
        await check_merging(args.python)
    url, key = server_url(args), api_key(kind_of(args))
    about = await outside.api.check_health(url, args)
    growing, whole = (to.with_name(f".{to.name}.{part}") for part in ("growing", "whole"))
    with disk_errors(to):
        _remove(growing, whole)
        growing.mkdir(parents=True)
        try:
            writing = _write(args, subject, growing, outside, (url, key))
            model_name = await first_contact(url, writing, about, known=kind_of(args).needs_key)
            if args.merged:
                await merge(args.python, model_name, growing, whole)
                for name in (CARD, SPLIT_FILE, DATASET_FILE):
                    with contextlib.suppress(FileNotFoundError):
                        shutil.copyfile(growing / name, whole / name)
            if to.exists():
                to.rmdir()
            (whole if args.merged else growing).rename(to)
        finally:
            _remove(growing, whole)
    print(f"the {'whole model' if args.merged else 'adapter'} of {subject.name} is in {to}")
    return 0


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


async def _write(args: ExportArgs, subject: Subject, folder: Path, outside: Outside, server: tuple[str, str]) -> str:
    """The adapter's folder. `server`: its URL and key. Returns the base model's name."""
    path = str(subject.path)
    opening = outside.api.session(await outside.api.rest(*server), *server, print)
    async with opened(opening) as session:
        reading = session.rest.get_weights_info_by_tinker_path(path)
        served = (await awaited(f"checkpoint={args.checkpoint}", reading, CALL_LIMIT_SEC)).base_model
        model_name = subject.model_name or served
        template = await asyncio.to_thread(outside.load_template, model_name, False, "template")
        await fetch_adapter(session, path, model_name, folder)
    template.tokenizer.save_pretrained(folder)
    (folder / CARD).write_text(card(subject, model_name, merged=args.merged))
    if subject.run is not None:
        for name in (SPLIT_FILE, DATASET_FILE):  # so that a later run knows which tasks these weights have seen
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(Path(subject.run) / name, folder / name)
    if subject.renderer is not None:
        renderer = {"renderer": subject.renderer.name, "thinking": subject.renderer.thinking}
        write_json(folder / IDENTITY, {"model_name": model_name, "checkpoint": path, **renderer})
    return model_name
