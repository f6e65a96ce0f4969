"""A whole run with an Outside of its own: no SDK, server, Docker, Harbor trial or wandb, and nothing patched.

Everything that crosses the border is written down, so that two configurations can be compared by what they do.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tinker
from harbor.models.task.config import TaskConfig
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import ExceptionInfo
from harbor.trial.hooks import TrialEvent
from tinker.lib.public_interfaces.training_client import TrainingClient

from harbortrainer.backend.connect import Api
from harbortrainer.backend.contract import TINKER_DOCUMENTS, Contract
from harbortrainer.backend.sessions import Session
from harbortrainer.cli.arguments import validate
from harbortrainer.config import Auto, Config, RunSettings, ServerSettings, ToolFormat
from harbortrainer.docker.checks.host import ServiceHost
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Role, TrialName
from harbortrainer.other_models.chat_client import ApiAddress, Spoken
from harbortrainer.policy.chat_template import BaseModel, ChatTemplate
from harbortrainer.policy.roles import Written
from harbortrainer.policy.tinker_llm import live_llm
from harbortrainer.stopping import Stop
from harbortrainer.train import parse
from harbortrainer.training.outside import Outside
from harbortrainer.training.session import run_training
from harbortrainer.training.trainer import Terminus2Trainer
from harbortrainer.venues.harbor.venue import HarborVenue
from tests.support.fakes import QWEN3, byte_tokenizer

MAX_CONTEXT = 131072
UNDER_WAY: list[str] = []  # trials: s = of a step, e = of an evaluation


class Answer[T]:
    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self):
        return self._value
        yield  # a generator, as __await__ must be


class Recorder:
    """Every event as one line of JSON. Order within a batch is chance, so events are compared sorted."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def note(self, kind: str, **what: Any) -> None:
        self.events.append(json.dumps({"kind": kind, **what}, sort_keys=True, default=str))

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in map(json.loads, self.events) if event["kind"] == kind]


class FakeServer:
    """Service, REST, training and sampling client in one. Logprobs are a function of the tokens alone."""

    model_id = "model_1"
    about: Mapping[str, Any] = {}  # its healthz, as far as it reports on itself

    def __init__(self, recorder: Recorder) -> None:
        self._note = recorder.note

    def get_server_capabilities(self) -> Answer[Any]:
        models = [
            SimpleNamespace(model_name=name, max_context_length=MAX_CONTEXT) for name in ("models/one", "models/two")
        ]
        return Answer(SimpleNamespace(supported_models=models))

    def close(self, status: str) -> Answer[None]:
        self._note("close", status=status)
        return Answer(None)

    def create_lora_training_client(
        self, model: str, rank: int, seed: int, train_unembed: bool
    ) -> Answer["FakeServer"]:
        self._note("create", model=model, rank=rank, seed=seed, train_unembed=train_unembed)
        return Answer(self)

    def get_weights_info_by_tinker_path(self, path: str) -> Answer[Any]:
        return Answer(SimpleNamespace(base_model="models/one", lora_rank=32))

    def create_training_client_from_state_with_optimizer(self, path: str) -> Answer["FakeServer"]:
        self._note("restore", step=int(path.rsplit("-", 1)[-1]))
        return Answer(self)

    def create_training_client_from_state(self, path: str) -> Answer["FakeServer"]:
        self._note("start from", path=path)
        return Answer(self)

    def create_sampling_client(self, model_path: str | None = None, base_model: str | None = None):
        self._note("sampler", base_model=base_model)
        return Answer(self)

    def forward_backward(self, datums: Sequence[tinker.Datum], loss_fn: str, config: dict[str, float] | None):
        for datum in datums:
            inputs = {name: value.to_numpy().round(6).tolist() for name, value in datum.loss_fn_inputs.items()}
            self._note("datum", tokens=datum.model_input.to_ints(), loss_fn=loss_fn, config=config, **inputs)
        self._note("forward_backward", datums=len(datums))
        outputs = [{"logprobs": _tensor(len(d.model_input.to_ints()))} for d in datums]
        return Answer(SimpleNamespace(loss_fn_outputs=outputs, metrics={}))

    def forward_backward_custom(self, datums: list[tinker.Datum], loss_fn: Any) -> Answer[Any]:
        """The SDK's own arithmetic on this server's logprobs; needs torch."""
        logprobs = tinker.types.ForwardBackwardOutput(
            loss_fn_output_type="", metrics={}, loss_fn_outputs=[
                {"logprobs": _tensor(len(d.model_input.to_ints()))} for d in datums
            ],
        )  # fmt: skip
        computed = TrainingClient._compute_custom_loss(datums, loss_fn, logprobs)
        answer = self.forward_backward(computed.data, "cross_entropy", None)
        answer._value.metrics |= computed.metrics | {"loss:sum": computed.loss_sum, "surrogate_loss:sum": 0.0}
        return answer

    def forward(self, datums: Sequence[tinker.Datum], loss_fn: str) -> Answer[Any]:
        self._note("forward", datums=len(datums), loss_fn=loss_fn)
        outputs = [{"logprobs": _tensor(len(d.model_input.to_ints()), FORWARD)} for d in datums]
        return Answer(SimpleNamespace(loss_fn_outputs=outputs, metrics={}))

    def optim_step(self, adam: tinker.AdamParams) -> Answer[Any]:
        self._note("optim_step", **adam.model_dump())
        return Answer(SimpleNamespace(metrics={"skyrl.ai/learning_rate": adam.learning_rate}))

    def sample(self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams):
        self._note("sample", prompt=prompt.to_ints(), n=num_samples, **sampling_params.model_dump())
        n = min(3, sampling_params.max_tokens or 3)
        sequence = SimpleNamespace(tokens=[65] * n, logprobs=[-0.5] * n, stop_reason="stop")
        return Answer(SimpleNamespace(sequences=[sequence]))

    def compute_logprobs(self, prompt: tinker.ModelInput) -> Answer[list[float | None]]:
        return Answer([None, *(-0.1 * (i % 7) for i in range(prompt.length - 1))])

    def save_weights_for_sampler(self, name: str) -> Answer[Any]:
        return Answer(SimpleNamespace(path=f"tinker://model_1/sampler_weights/{name}"))

    def save_state(self, name: str) -> Answer[Any]:
        self._note("save_state", step=name.rsplit("-", 1)[-1])
        return Answer(SimpleNamespace(path=f"tinker://model_1/weights/{name}"))

    def list_checkpoints(self, model_id: str) -> Answer[Any]:
        return Answer(SimpleNamespace(checkpoints=[]))

    def delete_checkpoint_from_tinker_path(self, path: str) -> Answer[None]:
        self._note("delete", state="/weights/" in path)
        return Answer(None)


class FakeTrial:
    """Harbor's trial: two turns of the live policy, then a reward that depends on the trial's name alone."""

    verifier_timeout_sec = 60.0
    agent_environment = None
    task = SimpleNamespace(config=TaskConfig())

    def __init__(self, config: TrialConfig, recorder: Recorder) -> None:
        self._config, self._note = config, recorder.note
        self._hooks: dict[TrialEvent, Any] = {}

    def add_hook(self, event: TrialEvent, hook: Any) -> None:
        self._hooks[event] = hook

    async def run(self) -> Any:
        """Harbor's order of phases."""
        for event in (TrialEvent.ENVIRONMENT_START, TrialEvent.AGENT_START):
            await self._hooks[event](None)
        result = await self._act()
        for event in (TrialEvent.AGENT_END, TrialEvent.VERIFICATION_START):
            await self._hooks[event](None)
        return result

    async def _act(self) -> Any:
        name = self._config.agent.kwargs["llm_kwargs"]["name"]
        llm = live_llm(name)
        shown = self._config.model_dump(mode="json", exclude={"trials_dir", "task"})
        shown["environment"]["kwargs"].pop("run_id", None)  # random
        limits = (llm.get_model_context_limit(), llm.get_model_output_limit(), llm.deadline is None)
        self._note("trial", config=shown, task=self._config.task.path, limits=limits)
        UNDER_WAY.append(name[0])
        first = await llm.call("the task")
        history = [{"role": "user", "content": "the task"}, {"role": "assistant", "content": first.content}]
        slot = TrialName.parse(name)
        llm.written = lambda text: Written.by(Role.ENVIRONMENT, text)
        await llm.call(f"the terminal of member {slot.member}", message_history=history)
        llm.stop_reason = "done"
        if "s" in UNDER_WAY and "e" in UNDER_WAY:
            self._note("an evaluation beside a batch")
        UNDER_WAY.remove(name[0])
        rewards = {"reward": 1.0 if slot.problem % 2 else (0.0, 1.0, 0.25, 0.0)[slot.member % 4]}
        nothing = dict.fromkeys(("exception_info", "step_results", "environment_setup", "agent_setup", "verifier"))
        if name.startswith("s000000-p01-g02"):
            nothing["exception_info"] = ExceptionInfo.from_exception(RuntimeError("this place never gets a grade"))
        graded = SimpleNamespace(rewards=rewards)
        return SimpleNamespace(**nothing, agent_execution=None, verifier_result=graded, finished_at=None)


class FakeEndpoint:
    """Simulated user or judge: notes every request. A judge's score is 1 for the first member of a group, else -0.5."""

    described, outages = "judge=here", 0

    def __init__(self, place: ApiAddress, recorder: Recorder) -> None:
        self._note = recorder.note
        self._note("endpoint", **asdict(place))

    async def check(self, **_: Any) -> None: ...

    async def aclose(self) -> None: ...

    async def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Spoken:
        self._note("judged", messages=messages, **fields)
        first = "of member 0" in messages[-1]["content"]
        return Spoken(f'{{"score": {1 if first else -0.5}, "categories": ["short"]}}', 100, 10)


class FakeWandb:
    def __init__(self, recorder: Recorder) -> None:
        self._note = recorder.note

    def log(self, row: dict[str, Any]) -> None:
        self._note("wandb.log", step=row["global_step"])

    def finish(self, exit_code: int | None = None) -> None: ...


class NotedStop(Stop):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._note = recorder.note

    def limit(self, config: RunSettings, say: Callable[[str], None]) -> None:
        super().limit(config, say)
        self._note("stop", after_sec=config.max_wall_sec)


FORWARD = -0.8  # of a pass that changes nothing: further from the samples' -0.5 than loss_fn=dppo moves them


def _tensor(n: int, logprob: float = -0.5) -> tinker.TensorData:
    return tinker.TensorData.from_numpy(np.full(n, logprob, np.float32))


class FakeApi(Api):
    """No server: what is asked of one is noted."""

    def __init__(self, recorder: Recorder, server: FakeServer | None = None) -> None:
        self._note = recorder.note
        self._server = server or FakeServer(recorder)
        self._waves = 0

    async def check_health(self, url: str, config: ServerSettings) -> dict[str, Any]:
        self._note("health", url=url)
        return dict(self._server.about)

    async def until_answering(self, url: str, limit_sec: float) -> None: ...

    async def load(self, url: str) -> dict[str, Any]:
        """Another wave of 3 requests at each reading."""
        self._waves += 1
        n = self._waves
        counted = {"waves": n, "wave_requests": 3 * n, "wave_seconds": 0.5 * n}
        return counted | {
            "seats": 16,
            "compile_seconds": 0.0,
            "compiles": 4,
            "compiles_cached": 2,
            "compiles_ahead": 6,
            "gpu_busy_seconds": self._waves,
            "gpu_seconds": 2 * self._waves,
        }

    async def unload(self, url: str, model_ids: Sequence[str]) -> None: ...

    async def rest(self, url: str, key: str) -> Any:
        return await self.service(url, key)

    async def session(self, rest: Any, url: str, key: str, say: Any) -> Session:
        return Session(await self.service(url, key), rest, url, key)

    async def service(self, url: str, key: str) -> Any:
        self._note("open", url=url, key=key)
        return self._server

    def base_model(self, name: str) -> BaseModel:
        return BaseModel(("Qwen3ForCausalLM",), 1000)


class FakeHost(ServiceHost):
    """No Docker: what is asked of it is noted."""

    def __init__(self, recorder: Recorder) -> None:
        self._note, self._building = recorder.note, 0

    def check(
        self, tasks: Sequence[Path], n_containers: int, environment_kwargs: Mapping[str, Any], beside_mb: int = 0
    ) -> list[str]:
        self._note("docker", parallel=n_containers)
        return []

    async def build(self, task: Path, run_id: str, prebuilt_only: bool) -> tuple[()]:
        self._building += 1
        await asyncio.sleep(0.001)
        self._note("images", task=task.name, at_once=self._building)
        self._building -= 1
        return ()

    def window(self, images_gb: float | Auto) -> None:
        self._note("window", images_gb=images_gb)

    def reap(self, run_id: str) -> None:
        self._note("reap", own=True)


def fake_outside(
    recorder: Recorder,
    server: FakeServer | None = None,
    endpoint: type[FakeEndpoint] = FakeEndpoint,
    trial: type[FakeTrial] = FakeTrial,
) -> Outside:
    """Nothing leaves the process; what would goes to the recorder."""

    async def documented(*_: Any) -> Contract:
        return TINKER_DOCUMENTS

    def template(name: str, enable_thinking: bool, tool_format: ToolFormat) -> ChatTemplate:
        recorder.note("tokenizer", model=name)
        return ChatTemplate(byte_tokenizer(QWEN3), enable_thinking=enable_thinking, tool_format=tool_format)

    async def new_trial(config: TrialConfig) -> Any:
        return trial(config, recorder)

    def wandb(_run: Any, project: str | None, name: str | None, config: dict[str, Any], _: Any) -> FakeWandb | None:
        recorder.note("wandb.init", project=project, name=name, effective=config["effective"] if project else None)
        return FakeWandb(recorder) if project else None

    def connect(place: ApiAddress, *, patience_sec: float) -> Any:
        return endpoint(place, recorder)

    return Outside(
        FakeApi(recorder, server),
        documented,
        template,
        {"harbor": HarborVenue(FakeHost(recorder), new_trial)},
        connect,
        wandb,
        leave_report=lambda _: "",
    )


def note_settings(trainer: Terminus2Trainer, recorder: Recorder) -> None:
    """What the wired parts were made with, where nothing else of it would be seen in a run without faults."""
    parts: Any = trainer.parts
    settings = trainer.trials.rollouts._settings
    room: Any = trainer.trials.rollouts._rooms["harbor"]
    daemon = room.local.daemon
    recorder.note("verifiers", at_once=settings.gates.verifying.limit)
    recorder.note("daemon", limit_sec=daemon._limit_sec, asked=type(daemon._ping.__self__).__name__)
    recorder.note("limits", **asdict(parts.policy._limits))
    recorder.note("sampler settings", request_timeout_sec=parts.sampler._timeout)
    recorder.note("outage", limit_sec=trainer.outage.limit_sec)


async def fake_run(config: Config, recorder: Recorder, stop: Stop | None = None, **others: Any) -> int:
    """Exit status of the run. `others`: of `fake_outside`."""

    async def noted(trainer: Terminus2Trainer, outside: Outside) -> int:
        note_settings(trainer, recorder)
        return await trainer.finish(outside)

    return await run_training(config, stop, fake_outside(recorder, **others), noted)


async def recorded_run(arguments: Sequence[str], server: type[FakeServer] = FakeServer, **others: Any) -> list[str]:
    """What a run with these arguments does, sorted; a refusal is one event. `others`: of `fake_outside`."""
    recorder = Recorder()
    try:
        config = parse(arguments)
        validate(config)
        await fake_run(config, recorder, NotedStop(recorder), server=server(recorder), **others)
    except UserError as error:
        recorder.note("refused", words=str(error))
    return sorted(recorder.events)
