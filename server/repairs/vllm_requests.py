"""Samples are computed by vLLM servers instead of the engine; active where server/launch.py has their URLs.

Upstream: skyrl/tinker/api.py, asample, and skyrl/tinker/extra/external_inference.py keep forwarded samples in memory,
so that a restart loses them, and make each failure final. Here a sample is a row of the database of type EXTERNAL,
which the engine leaves alone; rows that wait when the server starts are sampled. vLLM's restarts are waited for.
A request that only scores its prompt stays with the engine: the trainer's own numerics.
"""

# pyright: reportMissingImports=false
import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from skyrl.backends.renderer import render_model_input
from skyrl.tinker import api, types
from skyrl.utils.log import logger
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import col, insert, select, update
from sqlmodel.ext.asyncio.session import AsyncSession

from repairs import api_left, shared
from repairs.api_futures import OWN, answers
from repairs.api_names import sampler_name
from repairs.api_notes import utc_now
from repairs.api_prompts import note_asked
from repairs.api_routes import Endpoint, around_life, bad_request, wrap
from repairs.api_targets import TARGETS
from repairs.rows import Rows
from repairs.vllm_adapters import Adapters, version
from repairs.vllm_client import Ask, Gone, Refused, Vllm
from repairs.vllm_sampling import Sampling

STORE_PAUSE_SEC = 1.0
SAVE_SEC = 3600.0  # a save that takes longer is loaded when it is answered
SCORED_TOKENS = 1024  # of a prompt that vLLM scores: it makes tokens x vocabulary numbers at once


class SamplingParams(types.SamplingParams):
    """`seed_given`: False where skyrl drew the seed because the client gave none."""

    seed_given: bool = True


class SampleInput(shared.SampleInput):
    sampling_params: SamplingParams


def ask_of(data: SampleInput) -> Ask:
    params = data.sampling_params
    return Ask(
        prompt=tuple(render_model_input([data.prompt])[0].prompt_ids),
        n=data.num_samples,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=params.seed if params.seed_given else None,
        stop_tokens=tuple(params.stop_tokens or ()),
        stop_strings=tuple(params.stop_strings or ()),
        top_scores=data.topk_prompt_logprobs if data.prompt_logprobs else None,
    )


def only_scores(data: types.SampleInput) -> bool:
    return data.prompt_logprobs and data.sampling_params.max_tokens == 1


class Sampler:
    """Answers the rows of type EXTERNAL."""

    def __init__(self, wiring: Any) -> None:
        config = api.app.state.engine_config
        self.servers = [Vllm(url, wiring.key) for url in wiring.urls]
        folders = Path(config.checkpoints_base), Path(wiring.folder)
        self.adapters = Adapters(*folders, config.base_model, self.servers, handed=Path(wiring.handed))
        self.sampling = Sampling(self.servers, self.adapters, config.base_model, wiring.status_file, logger.warning)
        self.rows = Rows(config.database_url)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Samples what the last process left, but for api_left.unclaimed; takes over what the engine still saves."""
        await self.adapters.clean()
        request = api.FutureDB
        kinds = types.RequestType.EXTERNAL, types.RequestType.SAVE_WEIGHTS_FOR_SAMPLER
        waiting = (col(request.request_type).in_(kinds), request.status == api.RequestStatus.PENDING)
        async with AsyncSession(api.app.state.db_engine) as session:
            for row in (await session.exec(select(request).where(*waiting))).all():
                if str(row.request_id) in api_left.unclaimed:
                    continue
                if row.request_type == types.RequestType.EXTERNAL:
                    self.spawn(row.request_id, row.model_id or "", SampleInput.model_validate(row.request_data))
                else:
                    self.expect(row.request_id, row.model_id, row.request_data["path"], 0)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self.servers:
            await server.close()
        await self.rows.close()

    async def add(self, model_id: str, data: SampleInput) -> int:
        """The request's id, when it is in the database."""
        kind, asked = types.RequestType.EXTERNAL, data.model_dump(mode="json")
        row = api.FutureDB(request_type=kind, model_id=model_id, request_data=asked, status=api.RequestStatus.PENDING)
        request_id = await self.rows.write(insert(api.FutureDB).values(**row.model_dump(exclude={"request_id"})))
        assert request_id is not None
        return request_id

    def spawn(self, request_id: int, model_id: str, data: SampleInput) -> None:
        """The request is in the database."""
        OWN.add(request_id)
        self._keep(asyncio.create_task(self._answer(request_id, model_id, data)))

    def expect(self, request_id: int, model_id: str, name: str, since: int) -> None:
        """vLLM loads this sampler as soon as the engine hands it over; `since`: when its save was asked for."""
        saved = asyncio.create_task(self._answered(request_id))
        self._keep(saved)
        self._keep(asyncio.create_task(self.adapters.take_over(model_id, name, since, saved)))

    async def _answered(self, request_id: int) -> None:
        """Returns when the request is answered, or unknown."""
        with contextlib.suppress(KeyError):
            await api.wait_for_future(api.app.state.future_waiters, request_id, SAVE_SEC)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request_id: int, model_id: str, data: SampleInput) -> None:
        """Cancelled when the server stops; the next process takes the request up again."""
        status = api.RequestStatus.COMPLETED
        try:
            found = await self.sampling.sample(ask_of(data), model_id, data.checkpoint_id, data.weights)
            result: Any = shared.only_last(types.SampleOutput.model_validate(found), data.last_n)
        except Refused as error:
            result, status = types.ErrorResponse(error=str(error), status="failed"), api.RequestStatus.FAILED
        except (ValueError, LookupError, TypeError, OSError) as error:
            logger.exception(f"Request {request_id} failed")
            result = types.ErrorResponse(error=f"{type(error).__name__}: {error}", status="failed")
            status = api.RequestStatus.FAILED
        values = {"result_data": result.model_dump_json(), "status": status, "completed_at": utc_now()}
        row = update(api.FutureDB).where(col(api.FutureDB.request_id) == request_id).values(**values)
        while not await self._stored(request_id, row):  # noqa: ASYNC110
            await asyncio.sleep(STORE_PAUSE_SEC)
        answers(request_id, (status, types.RequestType.EXTERNAL, values["result_data"]))

    async def _stored(self, request_id: int, row: Any) -> bool:
        """Whether the answer is in the database, which may be locked for a while."""
        try:
            await self.rows.write(row)
        except SQLAlchemyError as error:
            logger.warning(f"The answer to request {request_id} is not stored yet: {error}")
            return False
        return True


sampler: Sampler | None = None


def forwarded(stock: Endpoint) -> Endpoint:
    async def create_future(
        session: Any, request_type: Any, model_id: Any, request_data: Any, seq_id: Any = None
    ) -> int:
        if request_type != types.RequestType.SAMPLE or only_scores(request_data):
            return await stock(session, request_type, model_id, request_data, seq_id)
        assert sampler is not None
        note_asked(session, request_data)
        if request_data.targets:
            raise bad_request(f"{TARGETS}: ask for them in a request with max_tokens=1, the sampler is vLLM")
        n_prompt = len(render_model_input([request_data.prompt])[0].prompt_ids)
        if request_data.prompt_logprobs and n_prompt > SCORED_TOKENS:
            raise bad_request(
                f"prompt_logprobs with max_tokens={request_data.sampling_params.max_tokens}: the sampler (vLLM) scores "
                f"prompts of at most {SCORED_TOKENS} tokens, not {n_prompt}; score it in a request with max_tokens=1"
            )
        if model_id:
            with contextlib.suppress(FileNotFoundError):  # the answer says that it is gone
                request_data.weights = version(sampler.adapters.file(model_id, request_data.checkpoint_id))
        await session.rollback()  # nothing was written; what was read is an open connection
        request_id = await sampler.add(model_id, request_data)
        session.info[request_id] = model_id, request_data
        return request_id

    return create_future


def sampled(stock: Endpoint) -> Endpoint:
    async def asample(session: AsyncSession, **others: Any) -> Any:
        made = await stock(session=session, **others)
        request_id = int(made["request_id"])
        if request_id in session.info:  # it is written by now
            assert sampler is not None
            sampler.spawn(request_id, *session.info[request_id])
        return made

    return asample


def expected(stock: Endpoint) -> Endpoint:
    async def save_weights_for_sampler(request: Any, session: AsyncSession) -> Any:
        since = time.time_ns()
        made = await stock(request=request, session=session)
        assert sampler is not None
        sampler.expect(int(made.request_id), request.model_id, sampler_name(request), since)
        return made

    return save_weights_for_sampler


def preloaded(stock: Endpoint) -> Endpoint:
    async def retrieve_future(**given: Any) -> Any:
        """A sampler is saved when vLLM has taken it: one that it refuses is an error of the save, not of samples."""
        answer = await stock(**given)
        path = await saved_sampler(answer)
        if path is not None:
            assert sampler is not None
            try:
                await sampler.adapters.preload(path.primary_id, path.secondary_id)
            except Gone:
                pass  # an answer fetched again, after the sampler was deleted
            except Refused as error:
                raise bad_request(str(error)) from None
        return answer

    return retrieve_future


async def saved_sampler(answer: Any) -> Any:
    """Path of the sampler that this answer to save_weights_for_sampler is about, or None."""
    if answer.media_type != "application/json" or b"save_weights_for_sampler" not in answer.body:
        return None
    body = json.loads(answer.body)
    path = body.get("path")
    if path is None and body.get("sampling_session_id"):
        async with AsyncSession(api.app.state.db_engine) as session:
            known = await session.get(api.SamplingSessionDB, body["sampling_session_id"])
            path = known and known.model_path
    return types.TinkerPath.parse(path or "")


def seed_noted() -> None:
    """Request rows tell a seed that the client gave from one that skyrl drew."""
    types.SamplingParams, types.SampleInput = SamplingParams, SampleInput
    stock = api.SamplingParams.to_types

    def to_types(self: Any) -> Any:
        return stock(self).model_copy(update={"seed_given": self.seed is not None})

    api.SamplingParams.to_types = to_types


def apply() -> None:
    wiring = api.app.state.vllm
    if wiring is None:
        return

    @contextlib.asynccontextmanager
    async def life() -> AsyncIterator[None]:
        global sampler
        sampler = Sampler(wiring)
        try:
            yield
        finally:
            await sampler.stop()

    seed_noted()
    wrap("create_future", forwarded)
    wrap("asample", sampled)
    wrap("save_weights_for_sampler", expected)
    wrap("retrieve_future", preloaded)
    around_life(life)
    stock_life = api.app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with stock_life(app) as state:
            assert sampler is not None
            await sampler.start()
            yield state

    api.app.router.lifespan_context = lifespan
