"""Keeps vLLM running beside the server: a process group for each replica, on loopback, restarted when it ends or hangs.

server/launch.py starts this file with a Plan as JSON and reads the state of the replicas from Plan.status. It ends with
launch.py, whatever killed that one, and takes vLLM's processes with it. A replica that ends MOST deaths within ten
minutes stays away: requests then fail with the reason and the log's name (repairs/vllm_requests.py).
It runs under server/.venv and needs the standard library alone; vLLM has an environment of its own, server/vllm/.venv.
"""

import asyncio
import contextlib
import functools
import json
import os
import shlex
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from logs import CHUNK, Log, clear, say
from parent import die_with_parent
from sampler_hang import until_it_hangs

from repairs.vllm_status import ReplicaStatus

HERE = Path(__file__).resolve().parent
PYTHON = HERE / "vllm" / ".venv" / "bin" / "python"
LORAS_IN_MEMORY = 12  # more than repairs.vllm_adapters.KEEP: vLLM must never look for a deleted folder
GRAPHS = (
    1,
    2,
    4,
    8,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
)  # requests at once; its own 51 take three times as long. More than the last would run without graphs, half as fast
AFTER = "SKYRL_TX_VLLM_AFTER"  # for server/vllm/unpinned.py
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM takes as --max-lora-rank
# Without the list vLLM wraps the unembedding too, which the trainer does not train; two prompts scored at once then end
# vLLM's engine on a CPU
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ADAPTED += ("experts",)  # one module of vLLM: if it is not named, adapters of experts are dropped without a word
ADAPTED += ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")  # of linear attention
DEATHS_WITHIN_SEC, LONGEST_PAUSE_SEC, POLL_SEC, STOP_SEC = 600.0, 30.0, 0.5, 5.0
WRITE_AGAIN_SEC = 5.0
LOG_TAIL_BYTES, LONGEST_CAUSE = 65536, 300
NO_MEMORY = ("out of memory", "free memory on device", "no available memory for the cache blocks")
MEMORY_HELP = (
    "not enough GPU memory: lower VLLM_MEM or, where the trainer has the GPU too, XLA_PYTHON_CLIENT_MEM_FRACTION"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """`gpus`: one for each replica, empty on a CPU. `after`: a file; before it exists vLLM takes no memory of a GPU.

    `memory`: the share of a GPU. `context`: tokens in a sequence; `positions`: rope_parameters, {} = the
    model's own.
    `switches`: of vLLM's, for this kind of model. `flags`: more, from VLLM_FLAGS. `hang_sec`: without a token, after
    which it is started again. `log_mb`: MiB of a log before it is put aside.
    `handed`: a folder that is removed at the end (repairs/handover.py).
    """

    model: str
    dtype: str
    context: int
    rank: int
    ports: tuple[int, ...]
    gpus: tuple[str, ...]
    memory: float
    folder: str  # of logs and of the status
    max_deaths: int
    hang_sec: float
    log_mb: int
    positions: dict[str, Any] = field(default_factory=dict)
    switches: tuple[str, ...] = ()
    after: str = ""
    flags: str = ""
    handed: str = ""

    @property
    def status(self) -> Path:
        return Path(self.folder, "vllm.json")

    def log(self, index: int) -> Path:
        return Path(self.folder, "vllm.log" if len(self.ports) == 1 else f"vllm-{index}.log")

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(f"http://127.0.0.1:{port}" for port in self.ports)


def command(plan: Plan, index: int) -> list[str]:
    """`--generation-config vllm`: otherwise the model's own repetition_penalty would apply to every request."""
    values = {
        "--model": plan.model,
        "--served-model-name": plan.model,
        "--host": "127.0.0.1",
        "--port": plan.ports[index],
        "--dtype": plan.dtype,
        "--max-model-len": plan.context,
        "--max-lora-rank": next((rank for rank in RANKS if rank >= plan.rank), RANKS[-1]),
        "--max-loras": 2,
        "--max-cpu-loras": LORAS_IN_MEMORY,
        "--generation-config": "vllm",
        "--logprobs-mode": "raw_logprobs",
        "--uvicorn-log-level": "warning",
    }
    switches = ["--lora-target-modules", *ADAPTED]
    switches += ["--enable-lora", "--enable-prompt-tokens-details", "--no-enable-log-requests"]
    if plan.positions.get("rope_type") not in (None, "default"):  # as the trainer computes them
        overrides = {"rope_parameters": plan.positions, "max_position_embeddings": plan.context}
        values["--hf-overrides"] = json.dumps(overrides)
    if plan.gpus:
        values["--gpu-memory-utilization"] = plan.memory
        values["--worker-extension-cls"] = "unpinned.Unpinned"  # in server/vllm, see environment()
        values["--max-num-seqs"] = GRAPHS[-1]
        switches += ["--cudagraph-capture-sizes", *map(str, GRAPHS)]
    else:  # a seeded request whose prompt is split ends vLLM's engine on a CPU
        values["--max-num-batched-tokens"] = plan.context
        values["--distributed-executor-backend"] = "uni"  # with environment(): two processes to start, not three
        switches.append("--no-enable-chunked-prefill")
    flags = [str(part) for pair in values.items() for part in pair]
    program = ["-m", "vllm.entrypoints.openai.api_server"] if plan.gpus else [str(HERE / "sampler_cpu.py")]
    return [str(PYTHON), *program, *flags, *switches, *plan.switches, *shlex.split(plan.flags)]


def environment(plan: Plan, index: int) -> dict[str, str]:
    """This process's, without what is JAX's and Python's, and with vLLM's. The key is VLLM_API_KEY, from launch.py."""
    mine = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in mine and not name.startswith("XLA_")}
    always = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if plan.gpus:  # vLLM's faster sampler compiles programs at the first request, with a compiler that may be missing
        own = {"CUDA_VISIBLE_DEVICES": plan.gpus[index], "PYTHONPATH": str(HERE / "vllm"), AFTER: plan.after}
        # a worker that is forked imports nothing again: 22 s of a start
        quick = {"VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        return quick | kept | always | own
    threads = kept.get("VLLM_CPU_THREADS", "1")
    return (
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        | kept
        | always
        | {"OMP_NUM_THREADS": threads, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    )


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def cause_of(said: bytes) -> str:
    """The last line that names an error; for missing memory, the settings that share it. `said`: a log's end."""
    text = said.decode(errors="replace")
    if any(sign in text.lower() for sign in NO_MEMORY):
        return MEMORY_HELP
    errors = [line for line in text.splitlines() if "Error: " in line or "error: " in line]
    return errors[-1].strip()[-LONGEST_CAUSE:] if errors else ""


def kill_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def guarded(group: int) -> asyncio.subprocess.Process:
    """A process that kills the process group when this one ends, however: vLLM's engine outlives a vLLM that dies.

    It learns of the end by its input, which no other process holds open.
    """
    program = "import os, sys; sys.stdin.buffer.read(); os.killpg(int(sys.argv[1]), 9)"
    command = (sys.executable, "-ISc", program, str(group))
    pipe, quiet = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=quiet, stderr=quiet, start_new_session=True
    )


class Replica:
    """One vLLM server and its restarts."""

    def __init__(self, plan: Plan, index: int, changed: "functools.partial[None]") -> None:
        self.plan, self.index, self._changed = plan, index, changed
        self.url, self.log = plan.urls[index], plan.log(index)
        self.status = ReplicaStatus(url=self.url, state="starting", deaths=0, cause="", log=str(self.log))
        self._deaths: deque[float] = deque()
        self._said = b""  # the end of what this life has written

    async def keep(self) -> None:
        """Returns when the replica has ended too often. It is started again at once if it was ready, else later."""
        failed = 0  # starts in a row
        while True:
            hung = await self._run()
            failed = 0 if self.status["state"] == "ready" else failed + 1
            now = time.monotonic()
            self._deaths.append(now)
            while self._deaths and now - self._deaths[0] > DEATHS_WITHIN_SEC:
                self._deaths.popleft()
            over = len(self._deaths) >= self.plan.max_deaths
            deaths, cause = self.status["deaths"] + 1, hung or cause_of(self._said)
            self._set(state="given up" if over else "starting", deaths=deaths, cause=cause)
            what = f"given up after {len(self._deaths)} ends in ten minutes" if over else "started again"
            say(f"sampler: vLLM at {self.url} ended ({cause or 'no error in its log'}); {what}; {self.log}")
            if over:
                return
            await asyncio.sleep(min(2.0 ** (failed - 1), LONGEST_PAUSE_SEC) if failed else 0)

    async def _run(self) -> str:
        """One life of vLLM; what is said of it when it hung, else "". Its whole group is gone afterwards.

        Also when this task is cancelled.
        """
        with self._logged() as log:
            process = await asyncio.create_subprocess_exec(
                *command(self.plan, self.index),
                env=environment(self.plan, self.index),
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
            ended, guard = asyncio.create_task(process.wait()), asyncio.create_task(guarded(process.pid))
            try:
                while not ended.done() and not await asyncio.to_thread(is_healthy, self.url):
                    await asyncio.wait([ended], timeout=POLL_SEC)
                if ended.done():
                    return ""
                self._set(state="ready")
                return await self._until_over(ended)
            finally:
                ended.cancel()
                (other := await guard).kill()
                kill_group(process.pid, signal.SIGKILL)
                await asyncio.gather(process.wait(), other.wait())

    async def _until_over(self, ended: "asyncio.Task[int]") -> str:
        hang_sec = self.plan.hang_sec
        hangs = asyncio.create_task(until_it_hangs(self.url, self.plan.model, hang_sec))
        try:
            await asyncio.wait([ended, hangs], return_when=asyncio.FIRST_COMPLETED)
        finally:
            hangs.cancel()
        return "" if ended.done() else f"it computed nothing for {hang_sec:g} s (VLLM_HANG_SEC), and was ended"

    @contextlib.contextmanager
    def _logged(self) -> Iterator[int]:
        """The end of a pipe whose contents go to the log; of what is in it when the block ends, all."""
        self._said = b""
        loop, log = asyncio.get_running_loop(), Log(self.log, self.plan.log_mb << 20)
        source, sink = os.pipe()
        os.set_blocking(source, False)

        def take() -> bool:
            with contextlib.suppress(BlockingIOError):
                if data := os.read(source, CHUNK):
                    log.write(data)
                    self._said = (self._said + data)[-LOG_TAIL_BYTES:]
                    return True
                loop.remove_reader(source)
            return False

        loop.add_reader(source, take)
        try:
            yield sink
        finally:
            os.close(sink)
            while take():
                pass
            loop.remove_reader(source)
            os.close(source)
            log.close()

    def _set(self, **values: object) -> None:
        self.status.update(values)  # pyright: ignore[reportCallIssue, reportArgumentType]
        self._changed()


def write_status(plan: Plan, replicas: list[Replica]) -> None:
    """In the event loop. A full disk ends no vLLM: it is tried again."""
    new = plan.status.with_suffix(".new")
    try:
        new.write_text(json.dumps([replica.status for replica in replicas]))
        os.replace(new, plan.status)
    except OSError as error:
        say(f"sampler: the state of vLLM is not written: {error}; it is tried again")
        asyncio.get_running_loop().call_later(WRITE_AGAIN_SEC, write_status, plan, replicas)


async def supervise(plan: Plan) -> None:
    replicas: list[Replica] = []
    changed = functools.partial(write_status, plan, replicas)
    replicas += [Replica(plan, index, changed) for index in range(len(plan.ports))]
    changed()
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    assert own is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, own.cancel)
    for replica in replicas:
        clear(replica.log)
    await asyncio.gather(*(replica.keep() for replica in replicas))
    await asyncio.Event().wait()  # all have given up; launch.py lives on, and says so


def to_argument(plan: Plan) -> str:
    return json.dumps(asdict(plan))


def from_argument(text: str) -> Plan:
    values: dict[str, Any] = json.loads(text)
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Plan(**values)


def main() -> None:
    plan = from_argument(sys.argv[2])
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)
    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        asyncio.run(supervise(plan))
    if plan.handed:  # vLLM has ended, and so has the server, or will not need it again
        shutil.rmtree(plan.handed, ignore_errors=True)


if __name__ == "__main__":
    main()
