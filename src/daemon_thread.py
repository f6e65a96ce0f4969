"""A thread to wait in. It does not hold up the end of the process, as an executor's would."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future


async def in_daemon_thread[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function in a thread of its own. Cancelling the wait does not stop it.

    A process that ends meanwhile drops its connections; with that the Docker daemon gives up a build.
    """
    return await asyncio.wrap_future(daemon_future(function, *args, **kwargs))


def daemon_future[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """The same for those who do not wait in an event loop: its result or error, whatever that is."""
    future: Future[R] = Future()
    future.set_running_or_notify_cancel()  # nobody's cancellation ends the thread, nor what it hands on

    def work() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=work, name=getattr(function, "__name__", "waiting"), daemon=True).start()
    return future
