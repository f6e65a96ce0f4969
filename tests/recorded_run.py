"""A whole run of `src.session.train` in which only the outside is replaced: SDK, server, Docker, Harbor's trial, wandb.

Everything that crosses the border is written down, so that two configurations can be compared by what they do.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tinker
from harbor.models.task.config import TaskConfig
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import ExceptionInfo
from harbor.trial.hooks import TrialEvent

from src import session, terminus2_trainer
from src.backend import connect as connecting
from src.backend import policy
from src.backend.base_model import BaseModel
from src.backend.contract import TINKER_DOCUMENTS, Contract
from src.backend.limits import Limits
from src.budget import dry_run
from src.chat_template import ChatTemplate
from src.cli.training import parse
from src.config import Config
from src.display.display import Display
from src.errors import UserError
from src.evaluation.in_training import beside
from src.policy_sampler import PolicySampler
from src.recovery import Recovery
from src.rollout import gates, rollouts, trial
from src.rollout.docker.health import Daemon, Ping
from src.rollout.gates import Gates, StartLimit
from src.run.directory import RunDirectory
from src.stop import Stop
from src.tinker_llm import live_llm
from src.validation import validate
from tests.fakes import QWEN3, byte_tokenizer

MAX_CONTEXT = 131072


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
        limits = (llm.get_model_context_limit(), llm.get_model_output_limit(), llm.deadline is None)
        self._note("trial", config=shown, task=self._config.task.path, limits=limits)
        first = await llm.call("the task")
        history = [{"role": "user", "content": "the task"}, {"role": "assistant", "content": first.content}]
        await llm.call("the terminal", message_history=history)
        llm.stop_reason = "done"
        member, problem = int(name.split("-g")[1][:2]), int(name.split("-p")[1][:2])
        rewards = {"reward": 1.0 if problem % 2 else (0.0, 1.0, 0.25, 0.0)[member % 4]}
        nothing = dict.fromkeys(("exception_info", "step_results", "environment_setup", "agent_setup", "verifier"))
        if name.startswith("s000000-p01-g02"):
            nothing["exception_info"] = ExceptionInfo.from_exception(RuntimeError("this place never gets a grade"))
        graded = SimpleNamespace(rewards=rewards)
        return SimpleNamespace(**nothing, agent_execution=None, verifier_result=graded, finished_at=None)


class FakeWandb:
    def __init__(self, recorder: Recorder) -> None:
        self._note = recorder.note

    def log(self, data: dict[str, Any]) -> None:
        self._note("wandb.log", step=data["global_step"])

    def finish(self, exit_code: int | None = None) -> None: ...


class NotedStop(Stop):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._note = recorder.note

    def limit(self, config: Config, say: Callable[[str], None]) -> None:
        super().limit(config, say)
        self._note("stop", waits=self._wait_for_trials, after_sec=config.max_wall_sec)


def _tensor(n: int) -> tinker.TensorData:
    return tinker.TensorData.from_numpy(np.full(n, -0.5, np.float32))


def replace_the_outside(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    """Patch every border of a run; what crosses it goes to the recorder."""
    server = FakeServer(recorder)

    def opened(url: str, key: str) -> FakeServer:
        recorder.note("open", url=url, key=key)
        return server

    async def healthy(url: str, _: Any) -> dict[str, Any]:
        recorder.note("health", url=url)
        return {}

    def template(name: str, enable_thinking: bool) -> ChatTemplate:
        recorder.note("tokenizer", model=name)
        return ChatTemplate(byte_tokenizer(QWEN3), enable_thinking=enable_thinking)

    async def built(folders: Sequence[Path], *, progress: Any, run_id: str) -> int:
        recorder.note("images", tasks=sorted(folder.name for folder in folders))
        return 0

    async def ready(_: Any) -> None: ...

    async def create(config: TrialConfig) -> FakeTrial:
        return FakeTrial(config, recorder)

    async def documented(*_: Any) -> Contract:
        return TINKER_DOCUMENTS

    class NotedStarts(StartLimit):
        def __init__(self, most: int) -> None:
            recorder.note("starts", most=most)
            super().__init__(most)

    class NotedDaemon(Daemon):
        def __init__(self, limit_sec: float, ping: Ping) -> None:
            recorder.note("daemon", limit_sec=limit_sec, asked=ping.__name__)
            super().__init__(limit_sec, ping)

    class NotedLimits(Limits):
        @classmethod
        def of(cls, config: Config) -> Limits:
            limits = Limits.of(config)
            recorder.note("limits", **asdict(limits))
            return limits

    class NotedSampler(PolicySampler):
        def __init__(self, **settings: Any) -> None:
            recorder.note("sampler settings", **settings)
            super().__init__(**settings)

    class NotedRecovery(Recovery):
        def __init__(self, *parts: Any) -> None:
            recorder.note("recovery", limit_sec=parts[-1])
            super().__init__(*parts)

    class NotedDisplay(Display):
        def keep_log(self, run: RunDirectory, total_steps: int = 0) -> None:
            recorder.note("display", mode=self._mode)
            super().keep_log(run, total_steps)

    async def noted_beside(one: Any, other: Any) -> Any:
        recorder.note("beside")
        return await beside(one, other)

    def limits(config: Config) -> Gates:
        made = Gates.of(config)
        recorder.note("verifiers", at_once=made.verifying._value)
        return made

    def wandb(_run: Any, project: str | None, name: str | None, config: dict[str, Any], _: Any) -> FakeWandb | None:
        recorder.note("wandb.init", project=project, name=name, effective=config["effective"] if project else None)
        return FakeWandb(recorder) if project else None

    def docker(_tasks: Any, parallel: int, _kwargs: Any) -> list[str]:
        recorder.note("docker", parallel=parallel)
        return []

    for module in (connecting, dry_run):
        monkeypatch.setattr(module, "check_health", healthy)
    monkeypatch.setattr(connecting, "_rest_client", opened)
    monkeypatch.setattr(connecting, "_service", opened)
    monkeypatch.setattr(connecting, "contract_of", documented)
    monkeypatch.setattr(connecting, "Limits", NotedLimits)
    monkeypatch.setattr(session, "PolicySampler", NotedSampler)
    monkeypatch.setattr(session, "Display", NotedDisplay)
    for module in (connecting, policy):
        monkeypatch.setattr(module, "read_base_model", lambda name: BaseModel(("Qwen3ForCausalLM",), 1000, None))
    monkeypatch.setattr(policy.PolicyTrainer, "close", ready)
    monkeypatch.setattr(policy.PolicyTrainer, "until_answering", lambda *_: ready(None))
    monkeypatch.setattr(ChatTemplate, "load", template)
    monkeypatch.setattr(session, "check_docker", docker)
    monkeypatch.setattr(session, "prepare_images", built)
    monkeypatch.setattr(session, "reap", lambda run: recorder.note("reap", own=run is not None))
    monkeypatch.setattr(session, "tidy", list)
    monkeypatch.setattr(session, "guarding_disk", lambda run: nullcontext())
    monkeypatch.setattr(session, "draw_reward_curve", lambda *_: None)
    monkeypatch.setattr(session, "leave_report", lambda _: "")
    monkeypatch.setattr(session, "start_wandb", wandb)
    monkeypatch.setattr(rollouts.Rollouts, "warm_up", ready)
    monkeypatch.setattr(rollouts, "Daemon", NotedDaemon)
    monkeypatch.setattr(terminus2_trainer, "Recovery", NotedRecovery)
    monkeypatch.setattr(terminus2_trainer, "beside", noted_beside)
    monkeypatch.setattr(rollouts, "Gates", SimpleNamespace(of=limits))
    monkeypatch.setattr(gates, "StartLimit", NotedStarts)
    monkeypatch.setattr("harbor.trial.trial.Trial.create", create)


async def recorded_run(monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]) -> list[str]:
    """What a run with these arguments does, sorted; a refusal is one event."""
    recorder = Recorder()
    with monkeypatch.context() as patched:
        replace_the_outside(patched, recorder)
        try:
            config = parse(arguments)
            validate(config)
            await session.train(config, NotedStop(recorder))
        except UserError as error:
            recorder.note("refused", words=str(error))
    return sorted(recorder.events)


__all__ = ["recorded_run", "trial"]
