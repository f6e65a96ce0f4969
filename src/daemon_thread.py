"""A thread to wait in. It does not hold up the end of the process, as an executor's would."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


async def in_daemon_thread[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function in a thread of its own. Cancelling the wait does not stop it.

    A process that ends meanwhile drops its connections; with that the Docker daemon gives up a build.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def tell(setter: Callable[[Any], None], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(lambda: future.done() or setter(value))

    def work() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            tell(future.set_exception, error)
        else:
            tell(future.set_result, result)

    threading.Thread(target=work, name=getattr(function, "__name__", "waiting"), daemon=True).start()
    return await future


def daemon_future[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """The same for those who do not wait in an event loop: its result or error, whatever that is."""
    future: Future[R] = Future()

    def work() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=work, name=getattr(function, "__name__", "working"), daemon=True).start()
    return future
