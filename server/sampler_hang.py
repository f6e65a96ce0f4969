"""Notices a vLLM that takes requests and computes nothing, also while its /health answers.

It hangs when its counters of tokens stand still and a request for one token gets no answer either; an idle one answers
that. It needs the standard library alone.
"""

import asyncio
import http.client
import json
import os
import time
import urllib.error
import urllib.request

COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")  # of GET /metrics
LOOKS = 4  # in the time after which it hangs
LONGEST_LOOK_SEC = 10.0
NO_ANSWER = (OSError, ValueError, http.client.HTTPException)


def tokens_of(url: str, limit_sec: float) -> float | None:
    """Tokens that it has read and sampled since its start; None without an answer."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=limit_sec) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(COUNTERS))
    except NO_ANSWER:
        return None


def samples(url: str, model: str, limit_sec: float) -> bool:
    """Whether it answers a request for one token; to refuse it is an answer, to fail is none."""
    body = json.dumps({"model": model, "prompt": [0], "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('VLLM_API_KEY', '')}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/completions", body, headers), timeout=limit_sec
        ) as answer:
            return answer.status == http.HTTPStatus.OK
    except urllib.error.HTTPError as error:
        return error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR
    except NO_ANSWER:
        return False


async def until_it_hangs(url: str, model: str, limit_sec: float) -> None:
    """Returns when it has computed nothing for `limit_sec`, or a little longer, and was asked to."""
    seen, since, pause = None, time.monotonic(), limit_sec / LOOKS
    while time.monotonic() - since < limit_sec:
        await asyncio.sleep(pause)
        found = await asyncio.to_thread(tokens_of, url, min(pause, LONGEST_LOOK_SEC))
        works = found is not None and found != seen
        if works or await asyncio.to_thread(samples, url, model, pause):
            seen, since = found, time.monotonic()
