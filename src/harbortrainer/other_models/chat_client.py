"""An OpenAI-compatible chat endpoint: one asynchronous call with retries, patience during outages, typed faults."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay, wait_random_exponential

from harbortrainer.errors import EnvironmentFault, UserError, one_line
from harbortrainer.model_file import ANSWER_SEC
from harbortrainer.policy.chat_template import clean_text, split_thinking

PATH = "/chat/completions"
KNOCK_SEC = 10.0  # for the list of models
SMALL = ({"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Say yes."})
LETTERS_A_TOKEN = 4  # where an endpoint does not count
_RETRIED = (408, 409, 425, 429)  # statuses after which the same request may succeed, besides 5xx
log = logging.getLogger("harbortrainer")


class EndpointError(Exception):
    """The endpoint gave no answer that can be used: a fault of the endpoint or the network, never of the policy."""


class Passing(EndpointError):
    """Worth another attempt. `pause`: seconds that the endpoint asks for."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class Garbage(EndpointError):
    """An answer that is no JSON, or no answer of a chat."""


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """The address of an endpoint. `fields`: of every request, over those of the caller; None leaves a field out."""

    name: str  # of the setting
    url: str
    model: str
    key: str | None = None  # name of the environment variable that holds it
    fields: Mapping[str, Any] | None = None

    @property
    def token(self) -> str:
        """The key. Raises UserError when its variable is not set, or holds what no header of HTTP can."""
        if self.key is None:
            return ""
        if not (found := os.environ.get(self.key, "").strip()):
            raise UserError(f"{self.name}: key={self.key}: this environment variable is not set; export it")
        if not (found.isascii() and found.isprintable()):  # the client's own error would show the key
            raise UserError(
                f"{self.name}: key={self.key}: its value has a line break or other characters that no key has; "
                "export it again"
            )
        return found


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer. Tokens are estimated from letters where the endpoint does not count.

    `calls`: name and arguments, as they were sent, of the tools that it calls; then the text may be empty.
    `truncated`: it stopped at max_tokens.
    """

    text: str
    prompt_tokens: int
    sampled_tokens: int
    calls: tuple[tuple[Any, Any], ...] = ()
    thinking: str = ""
    truncated: bool = False


type OpenChatClient = Callable[..., ChatClient]  # of an ApiAddress and patience_sec: `ChatClient` itself, or a test's


class ChatClient:
    """One client for all trials of a run. `outages`: how many have begun; `ready` holds trials back during one."""

    def __init__(
        self,
        place: ApiAddress,
        *,
        patience_sec: float,
        answer_sec: float = ANSWER_SEC,
        longest_pause_sec: float = 30.0,
        first_pause_sec: float = 0.5,
        says: bool = True,
    ) -> None:
        """`patience_sec`: the longest outage that a request waits for; `says`: log when one begins and ends.

        Raises UserError: no key, no URL.
        """
        self.outages = 0
        self._says = says
        self._place = place
        self._patience, self._longest, self._first = patience_sec, longest_pause_sec, first_pause_sec
        self._answer = answer_sec
        self._away_since: float | None = None
        self._reason = ""
        self._backoff = wait_random_exponential(multiplier=first_pause_sec, max=longest_pause_sec)
        headers = {"Authorization": f"Bearer {token}"} if (token := place.token) else {}
        try:
            url = httpx.URL(place.url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise UserError(f"{place.name}: url={place.url!r}: {error}; give https://HOST/v1") from None
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=min(10.0, answer_sec)),  # its others begin anew with each byte
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    @property
    def described(self) -> str:
        """The setting and the address, for messages."""
        return f"{self._place.name}={self._place.url}"

    async def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Spoken:
        """Return one answer. `fields`: of the request, besides model and messages. Raises EndpointError.

        Statuses 408, 409, 425, 429 and 5xx, silence and broken connections are tried again within `patience_sec`.
        """
        body = self.body(messages, fields)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(Passing),
            stop=stop_after_delay(self._patience),
            wait=self._pause,
            reraise=True,
        ):
            with attempt:
                return spoken(await self.once(body), body)
        raise AssertionError("tenacity ends with a result or an error")

    async def check(self, **fields: Any) -> None:
        """Send one small request, before anything is spent. `fields`: as of later ones. Raises UserError."""
        body = self.body(SMALL, fields)
        try:
            spoken(await self.once(body), body)
        except EndpointError as error:
            raise UserError(
                f"{self.described}: {error}; check url (it ends in /v1 for most), model, key and fields of its file"
            ) from error

    async def ready(self) -> None:
        """Return when no outage is known, or the endpoint answers again. Raises EnvironmentFault after the patience."""
        pause = self._first
        while self._away_since is not None:
            if (away := time.monotonic() - self._away_since) >= self._patience:
                raise EnvironmentFault(
                    f"{self.described}: no answer for {away:.0f} s ({self._reason}); start it, or let the run wait "
                    "longer (outage_limit_sec)"
                )
            await asyncio.sleep(min(pause, self._patience - away))
            pause = min(2 * pause, self._longest)
            await self.suspect()

    async def suspect(self) -> None:
        """Call it after a fault of a trial: asks for the list of models; no status of 5xx or none at all = away.

        Once it is away it is asked for an answer: a proxy may list models that are gone.
        """
        try:
            async with asyncio.timeout(KNOCK_SEC):
                if self._away_since is not None:
                    await self.once(self.body(SMALL, {"max_tokens": 1}))
                    return
                response = await self._client.get("/models")
        except EndpointError:
            return  # noted by `once`
        except (httpx.HTTPError, TimeoutError) as error:
            self._missed(_reason(error))
        else:
            if response.status_code >= 500:
                self._missed(f"status {response.status_code}")

    async def aclose(self) -> None:
        await self._client.aclose()

    def body(self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request. The settings' fields go over those given; None leaves one out."""
        body = {"model": self._place.model, "messages": list(messages), **fields, **(self._place.fields or {})}
        return {name: value for name, value in body.items() if value is not None}

    async def once(self, body: Mapping[str, Any]) -> Any:
        """Return the JSON value of one attempt. Raises Passing where another one is worth it, EndpointError."""
        try:
            async with asyncio.timeout(self._answer):
                response = await self._client.post(PATH, json=body)
        except (httpx.TransportError, TimeoutError) as error:
            self._missed(_reason(error))
            raise Passing(_reason(error)) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EndpointError(_reason(error)) from error
        status = response.status_code
        if status >= 500:
            self._missed(f"status {status}")
            raise Passing(f"status {status}: {_words(response)}")
        self._answered()
        if status in _RETRIED:
            raise Passing(f"status {status}: {_words(response)}", _seconds(response))
        if status != 200:
            raise EndpointError(f"status {status}: {_words(response)}")
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise Garbage(f"its answer is no JSON: {_words(response)}") from error

    def _pause(self, state: RetryCallState) -> float:
        """Before the next attempt: longer each time, and as long as the endpoint asks for."""
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.pause if isinstance(error, Passing) else 0.0
        return max(self._backoff(state), min(asked, self._longest))

    def _missed(self, reason: str) -> None:
        self._reason = reason
        if self._away_since is None:
            self._away_since = time.monotonic()
            self.outages += 1
            if self._says:
                log.warning("%s does not answer (%s); trials wait for it", self.described, reason)

    def _answered(self) -> None:
        if self._away_since is not None and self._says:
            log.warning("%s is back after %.0f s", self.described, time.monotonic() - self._away_since)
        self._away_since = None


def spoken(value: Any, body: Mapping[str, Any]) -> Spoken:
    """Return what an answer to a request says.

    Raises Garbage without text and, where the request declares tools, without calls; one cut at once may be empty.
    """
    try:
        choice = value["choices"][0]
        message, truncated = choice["message"], choice.get("finish_reason") == "length"
        content, thinking = message.get("content"), message.get("reasoning_content") or message.get("reasoning")
        sent = (message.get("tool_calls") or ()) if body.get("tools") else ()
        calls = tuple((call["function"]["name"], call["function"].get("arguments")) for call in sent)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Garbage(f"its answer has no choices: {json.dumps(value)[:200]}") from None
    said = split_thinking(clean_text(content if isinstance(content, str) else ""), opened=False)
    thinking = clean_text(thinking) if isinstance(thinking, str) else said.thinking
    if not (text := said.text.strip()) and not calls and not truncated:
        raise Garbage("its answer has no text")
    return Spoken(text, *usage(value, body), calls, thinking, truncated)


def usage(value: Any, body: Mapping[str, Any]) -> tuple[int, int]:
    """Return tokens of prompt and answer, estimated where the endpoint does not count."""
    counted = value.get("usage") if isinstance(value, dict) else None
    counted = counted if isinstance(counted, dict) else {}
    written = json.dumps(value.get("choices")) if isinstance(value, dict) else ""
    sampled = _count(counted.get("completion_tokens"), 1 + len(written) // LETTERS_A_TOKEN)
    return _count(counted.get("prompt_tokens"), estimate(body)), sampled


def estimate(body: Mapping[str, Any]) -> int:
    """Return tokens of a request's prompt that nobody counted."""
    declared = json.dumps(body["tools"]) if body.get("tools") else ""
    letters = sum(len(str(message.get("content") or "")) for message in body["messages"])
    return (letters + len(declared)) // LETTERS_A_TOKEN


def _count(given: Any, estimate: int) -> int:
    return given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else estimate


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__} {' '.join(str(error).split())[:200]}".strip()


def _words(response: httpx.Response) -> str:
    return one_line(response.text)


def _seconds(response: httpx.Response) -> float:
    """The header Retry-After in seconds; 0 without one, or with a date."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
