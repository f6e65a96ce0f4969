"""What the engine has computed and what it compiles now, for clients: GET /api/v1/healthz shows it as `load`.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.sample pads every wave to sample_max_num_sequences and reports nothing.
A client sees that a request takes long, not whether it waited, was compiled for, or sat in a wave with free seats.
Counters grow from the server's start. They go through a file that server/launch.py names: the API is another process.
"""

# pyright: reportMissingImports=false
import ctypes
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import jax
from skyrl.backends import jax as backend
from skyrl.tx.utils.generator import GeneratorMixin
from skyrl.utils.log import logger

from repairs.machine import GIB

FILE = "SKYRL_TX_LOAD_FILE"  # in the environment
COMPILING = "/jax/core/compile/"  # JAX's events of tracing, lowering and compiling
COMPILED = "/jax/core/compile/backend_compile_duration"  # the last of a program's; also when a cache has the program
FROM_CACHE = "/jax/compilation_cache/cache_hits"  # comes before COMPILED
WHAT: dict[str | None, str] = {
    "forward_backward": "a training pass",
    "advance": "a sampling wave",
    "prefilled": "the prompts of a wave",
    "score": "a scoring of prompts",
    "forward": "a forward pass",
}
SHAPED = frozenset(WHAT)  # whose shape varies
WHAT |= {"update_slot": "an optimizer step", "fresh_slot": "a fresh adapter"}
SMALL: dict[str | None, str] = {
    "exported": "a copy of weights to save",
    "take_slot": "a copy of an adapter",
    "put_slot": "a copy of weights into an adapter",
    "all_finite": "a check of weights",
    "zeros": "an empty gradient",
    "placed": "a move of prompts to their seats",
    "moved": "a move of seats",
}
NAMES = SMALL | WHAT
GPU_POLL_SEC = 0.5
LOG_SEC = 0.5  # a smaller program than those of WHAT has a line in the log when it takes as long


def in_main_thread() -> bool:
    """Where calls are computed; a program that another thread compiles holds up none."""
    return threading.current_thread() is threading.main_thread()


class Load:
    """The file's values. `seats`: sequences a wave has room for. `gpu_*`: seconds, summed over GPUs. `peak_gib`: of the
    first GPU's memory, what JAX's arrays and programs have taken at most.

    `compiles`: programs that XLA compiled while a call waited; `compiles_cached`: read from JAX_COMPILATION_CACHE_DIR
    instead; `compiles_ahead`: made by engine_warm_up while none waited.
    """

    def __init__(self, path: str | None) -> None:
        self.path = Path(path) if path else None
        self._lock = threading.Lock()
        self._compiling: list[tuple[str, float]] = []  # a program that is traced within another comes later
        self.values: dict[str, Any] = {"seats": 0, "waves": 0, "wave_requests": 0, "wave_seconds": 0.0}
        self.values |= {"compile_seconds": 0.0, "compiling": None, "compiling_since": None}
        self.values |= {"compiles": 0, "compiles_cached": 0, "compiles_ahead": 0}
        self.shape = ""  # of the call that is computed now, for the log
        self._spent = 0.0  # seconds of the events since the last program
        self._cached = False  # whether the program that is compiled now was read from the cache

    def add(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self.values[name] = self.values.get(name, 0.0) + amount
            self._write()

    def note(self, **values: Any) -> None:
        """What is no counter."""
        with self._lock:
            self.values |= values
            self._write()

    def compile_began(self, event: str, _value: float, fun_name: str = "", **_: Any) -> None:
        if event.startswith(COMPILING) and in_main_thread():
            self._compiling.append((fun_name.removeprefix("jit(").removesuffix(")"), time.time()))
            if len(self._compiling) == 1:
                self._show_compiling()

    def compile_ended(self, event: str, _seconds: float, **_: Any) -> None:
        if not event.startswith(COMPILING) or not self._compiling or not in_main_thread():
            return
        name, since = self._compiling.pop()
        if not self._compiling:
            self._spent += time.time() - since
            self.values["compile_seconds"] += time.time() - since
        if event == COMPILED:
            self._count(name)
        if not self._compiling:
            self._show_compiling()

    def from_cache(self, event: str, **_: Any) -> None:
        self._cached |= event == FROM_CACHE and in_main_thread()

    def _count(self, name: str) -> None:
        self.values["compiles_cached" if self._cached else "compiles"] += 1
        if name in WHAT or self._spent >= LOG_SEC:
            how = "read from the cache" if self._cached else "compiled"
            shape = f" of {self.shape}" if self.shape and name in SHAPED else ""
            logger.info(f"{how}: {NAMES.get(name, name)}{shape} in {self._spent:.1f} s")
        self._spent, self._cached = 0.0, False

    def _show_compiling(self) -> None:
        name, since = self._compiling[0] if self._compiling else ("", None)
        shown: dict[str, Any] = {"compiling": NAMES.get(name, name) or None, "compiling_since": since}
        with self._lock:
            self.values |= shown
            self._write()

    def _write(self) -> None:
        """A full disk costs the numbers, not the engine."""
        if self.path is None:
            return
        new = self.path.with_suffix(".new")
        try:
            new.write_text(json.dumps(self.values))
            os.replace(new, self.path)
        except OSError as error:
            logger.warning(f"the server's load is no longer shown: {error}")
            self.path = None


load = Load(None)


def reporting(stock_init: Any) -> Any:
    def init(self: Any, base_model: str, config: Any, process_id: int) -> None:
        """Wraps JaxBackendImpl.__init__, for whose hundreds of programs the file is written once."""
        path, load.path = load.path, None
        stock_init(self, base_model, config, process_id)
        load.path = path
        load.add(seats=max(0, config.sample_max_num_sequences))
        for name in ("_forward_backward_and_accumulate", "_forward"):
            setattr(self, name, naming_pass(getattr(self, name)))
        if jax.default_backend() == "gpu":
            threading.Thread(target=watch_gpus, name="gpu load", daemon=True).start()

    return init


def naming_pass(function: Any) -> Any:
    def run(pending: Any, lora_params: Any, others: Any, ids: jax.Array, *batch: Any) -> Any:
        """Wraps a pass: the log names the shape of what it compiles."""
        load.shape = "{} x {} tokens".format(*ids.shape)
        return function(pending, lora_params, others, ids, *batch)

    return run


def naming_score(function: Any) -> Any:
    def run(model: Any, ids: jax.Array, *batch: Any) -> Any:
        """Wraps the scoring of prompts, which engine_waves adds."""
        load.shape = "{} x {} tokens".format(*ids.shape)
        return function(model, ids, *batch)

    return run


class Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the last sampling period in which the GPU, its memory were used."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def watch_gpus() -> None:
    """Adds how busy the visible GPUs are, for ever. Without NVML: nothing."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    visible = [int(one) for one in named if one.strip().isdigit()] or list(range(count.value))
    devices = []
    for index in visible:
        device = ctypes.c_void_p()
        if not nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            devices.append(device)
    while devices:
        began = time.monotonic()
        time.sleep(GPU_POLL_SEC)
        used = [Utilization() for _ in devices]
        if any(
            nvml.nvmlDeviceGetUtilizationRates(*pair) for pair in zip(devices, map(ctypes.byref, used), strict=True)
        ):
            return
        seconds = time.monotonic() - began
        busy = sum(one.gpu for one in used) / 100 * seconds
        stats = jax.local_devices()[0].memory_stats() or {}
        load.add(gpu_busy_seconds=busy, gpu_seconds=seconds * len(devices))
        load.note(peak_gib=round(stats.get("peak_bytes_in_use", 0) / GIB, 2))


def apply() -> None:
    global load
    load = Load(os.environ.get(FILE))
    jax.monitoring.register_scalar_listener(load.compile_began)
    jax.monitoring.register_event_duration_secs_listener(load.compile_ended)
    jax.monitoring.register_event_listener(load.from_cache)
    if hasattr(GeneratorMixin, "_score"):
        GeneratorMixin._score = staticmethod(naming_score(GeneratorMixin._score))
    backend.JaxBackendImpl.__init__ = reporting(backend.JaxBackendImpl.__init__)
