"""Harbor's logging, kept out of our terminal: it logs at DEBUG, to everybody, with one logger a trial for ever."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import override

HARBOR = "harbor.utils.logger"


class _Forward(logging.Handler):
    """Harbor's warnings to our own log, each text once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: set[str] = set()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._seen:
            self._seen.add(text)
            logging.getLogger("harbortrainer.harbor").log(record.levelno, "%s", text)


def tame_harbor_log() -> None:
    """Call once Harbor is imported; calling it again changes nothing."""
    logging.raiseExceptions = False  # a trial's log on a full disk: the run stops with one line, not with tracebacks
    logger = logging.getLogger(HARBOR)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    if not any(isinstance(handler, _Forward) for handler in logger.handlers):
        logger.addHandler(_Forward())


@contextmanager
def forget_loggers(trial_name: str) -> Iterator[None]:
    """Afterwards drop the loggers that were made for a trial: Python keeps them all otherwise."""
    try:
        yield
    finally:
        known = logging.Logger.manager.loggerDict
        for name in [name for name in known if trial_name in name.split(".")]:
            logger = known.pop(name)
            for parent in accumulate(name.split("."), "{}.{}".format):
                holder = known.get(parent)
                if isinstance(holder, logging.PlaceHolder) and isinstance(logger, logging.Logger):
                    holder.loggerMap.pop(logger, None)
