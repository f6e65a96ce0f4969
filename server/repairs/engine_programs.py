"""Compiled programs by key, each with the memory that it needs, which is known before it runs.

Upstream: skyrl/backends/jax.py leaves compiling to jax.jit: whether a call fits is found out by running it, which ends
a process on a CPU, and what does not fit is compiled again for each request.
Here a program whose scratch memory and results are larger than what is free is refused, at once from the second time.
"""

# pyright: reportMissingImports=false
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from skyrl.utils.log import logger

from repairs import engine_load
from repairs.engine_room import Room
from repairs.machine import GIB

Compile = Callable[[], Any]
Program = tuple[Hashable, str, Compile]  # key, name for people, what makes it
PLAINLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
FULL = "RESOURCE_EXHAUSTED"  # in JAX's errors
FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AssertionError, OSError)


class TooLarge(ValueError):
    """A program that does not fit into the memory; nothing has been computed."""


def is_full(error: Exception) -> bool:
    """Whether the memory was too small, found out before or while a program ran."""
    return isinstance(error, TooLarge) or FULL in str(error)


def needed(compiled: Any) -> int:
    """Bytes beside the arguments: scratch memory and results."""
    found = compiled.memory_analysis()
    if found is None:
        return 0
    return found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes


class Programs:
    """Those in the queue of a thread that compiles ahead, compiled now, made, ready to be called, or refused.

    `limit`: tokens up to which they are compiled ahead; 0: none. `hinted`: those of lengths that were sampled are.
    `micro_batch`, `seats`: rows of full passes and waves; 0: as the first has.
    """

    def __init__(self) -> None:
        self.limit, self.hinted, self.micro_batch, self.seats = 0, False, 0, 0
        self.room = Room()
        self._changed = threading.Condition()
        self._queue: dict[Hashable, tuple[str, Compile]] = {}
        self._ready: dict[Hashable, Any] = {}
        self._made: dict[Hashable, Any] = {}  # not called so far: compiled ahead, or too large
        self._refused: dict[Hashable, str] = {}  # that could not even be compiled
        self._called: set[Hashable] = set()
        self._now: Hashable = None
        self._thread: threading.Thread | None = None

    def clear(self) -> None:
        with self._changed:
            for known in (self._queue, self._ready, self._made, self._refused, self._called):
                known.clear()

    def first(self, key: Hashable) -> bool:
        """Whether the engine has not called this program before; it has then."""
        is_first = key not in self._called
        self._called.add(key)
        return is_first

    def has(self, key: Hashable, soon: bool = False) -> bool:
        """Whether the program is made; with `soon`, also whether the thread makes it or will."""
        coming = soon and (key in self._queue or key == self._now)
        return coming or key in self._ready or key in self._made

    def get(self, key: Hashable, name: str, compile_it: Compile) -> Any:
        """The program, compiled where it must be. Raises TooLarge. Waits while the thread compiles it."""
        began = time.monotonic()
        with self._changed:
            self._queue.pop(key, None)
            if self._now == key:
                engine_load.load.note(compiling=name, compiling_since=time.time())
                self._changed.wait_for(lambda: self._now != key)
                engine_load.load.note(compiling=None, compiling_since=None)
                engine_load.load.add(compile_seconds=time.monotonic() - began)
        if key in self._refused:
            raise TooLarge(self._refused[key])
        if key not in self._ready:
            if key not in self._made:
                self._made[key] = self._compiled(key, name, compile_it)
            self._check(name, self._made[key])
            self._ready[key] = self._made.pop(key)
        return self._ready[key]

    def _compiled(self, key: Hashable, name: str, compile_it: Compile) -> Any:
        try:
            return compile_it()
        except RuntimeError as error:
            if FULL not in str(error):
                raise
            self._refused[key] = f"{name} does not fit into the memory ({str(error).splitlines()[0]})"
            raise TooLarge(self._refused[key]) from error

    def _check(self, name: str, compiled: Any) -> None:
        """Raises TooLarge."""
        jax.block_until_ready(jnp.zeros(()) + 1)  # what ran before has given back its memory
        free = self.room.free()
        if free is not None and needed(compiled) > free:
            raise TooLarge(
                f"{name} needs {needed(compiled) / GIB:.2f} GiB of memory, {max(free, 0) / GIB:.2f} are free; "
                "set a smaller context_limit, or give the server more memory or GPUs"
            )

    def add(self, programs: list[Program]) -> None:
        """After the call that made them: compiling beside it would slow it down."""
        with self._changed:
            for key, name, compile_it in programs:
                if key not in self._called | self._ready.keys() | self._made.keys() | self._refused.keys():
                    self._queue[key] = name, compile_it
            if self._queue and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="warm-up", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                self._now = next(iter(self._queue))
                name, compile_it = self._queue.pop(self._now)
            began = time.monotonic()
            try:
                self._made[self._now] = compile_it()
                logger.info(f"compiled ahead: {name} in {time.monotonic() - began:.1f} s")
                engine_load.load.add(compiles_ahead=1)
            except FAILURES as error:  # the call that needs it will compile it, and fail where it must
                logger.warning(f"{name} could not be compiled ahead: {error}")
            with self._changed:
                self._now = None
                self._changed.notify_all()

    def wait(self, timeout_sec: float) -> None:
        """Until nothing is left to compile ahead."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and self._now is None, timeout_sec)


programs = Programs()


def quickly() -> dict[str, Any]:
    """Options for a program that runs a few times and computes little: on a CPU, compiling it takes longer."""
    return PLAINLY if jax.default_backend() == "cpu" else {}


def compiling(jitted: Any, mesh: Any, *arguments: Any, options: dict[str, Any] | None = None, **flags: Any) -> Compile:
    """What lowers and compiles; `arguments`: arrays or their specs. `options`: of the compiler."""

    def compile_it() -> Any:
        with jax.set_mesh(mesh):
            return jitted.lower(*arguments, **flags).compile(compiler_options=options)

    return compile_it
