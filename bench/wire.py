"""CPU that the model API for agents costs this process: of a first prompt, and of each turn at 20,000 tokens.

    python -m bench.wire [MODEL]

MODEL: a folder or hub name with a tokenizer; without it, DeepSeek's tokenizer (128,000 entries; a file of litellm) with
Qwen3's chat template. The client, one for each wire, is another process: 19,000 tokens of instructions and tools, then
turns with a call and 300 tokens of output each. CPU is this process's, all threads, HTTP included. A second trial of
the group has the same first prompt. What happens once a process (the template is compiled, a copy of the tokenizer is
made for special strings) is measured apart.
"""

import argparse
import asyncio
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harbortrainer.model_api.prompts import Prompts
from harbortrainer.policy.chat_template import ChatTemplate
from tests.support.fakes import Request, response
from tests.support.families import QWEN_TOOLS
from tests.support.wire_parts import served

ROOT = Path(__file__).parent.parent
TURNS = 10
LETTERS = 78_000  # of instructions and tools
CALL = '<tool_call>\n{"name":  "tool_0", "arguments": {"command":  "sed -n 1,40p notes.md"}}\n</tool_call>'
CLIENT = r"""
import http.client, json, sys
path, port, key, body, output, turns = json.load(sys.stdin)
server = http.client.HTTPConnection("127.0.0.1", port)
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
history = body["input" if "input" in body else "messages"]
for turn in range(turns):
    server.request("POST", path, json.dumps(body), headers)
    answer = json.loads(server.getresponse().read())
    print("turn", flush=True)
    if "choices" in answer:
        said = answer["choices"][0]["message"]
        history += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": output}]
    elif "output" in answer:
        history += answer["output"]
        history.append({"type": "function_call_output", "call_id": answer["output"][-1]["call_id"], "output": output})
    else:
        result = {"type": "tool_result", "tool_use_id": answer["content"][-1]["id"], "content": output}
        history += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [result]}]
"""


def template_of(model: str) -> ChatTemplate:
    if model:
        return ChatTemplate.load(model, False)
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    found = importlib.util.find_spec("litellm")
    assert found is not None and found.origin is not None
    file = Path(found.origin).parent / "litellm_core_utils" / "tokenizers" / "deepseek_tokenizer.json"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token=QWEN_TOOLS.end)
    tokenizer.add_special_tokens({"additional_special_tokens": list(QWEN_TOOLS.special)})
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in QWEN_TOOLS.markup])
    tokenizer.chat_template = QWEN_TOOLS.template
    return ChatTemplate(tokenizer)


def opening(text: str) -> tuple[str, str, list[dict[str, Any]]]:
    """Instructions, the task, and functions: 20 tools with descriptions take half of the letters."""
    half, part = LETTERS // 2, LETTERS // 40
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    functions = [
        {"name": f"tool_{n}", "description": text[half + n * part : half + (n + 1) * part], "parameters": schema}
        for n in range(20)
    ]
    return text[:half], "Tidy up notes.md.", functions


def requests(text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    system, task, functions = opening(text)
    asked = {"role": "user", "content": task}
    tools = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]
    chat: dict[str, Any] = {"messages": [{"role": "system", "content": system}, asked]}
    chat["tools"] = [{"type": "function", "function": f} for f in functions]
    responses = {"instructions": system, "input": [asked], "tools": [{"type": "function", **f} for f in functions]}
    return {
        "chat": ("/v1/chat/completions", chat),
        "responses": ("/v1/responses", responses),
        "messages": ("/v1/messages", {"system": system, "messages": [asked], "tools": tools, "max_tokens": 1000}),
    }


async def session(prompts: Prompts, path: str, body: dict[str, Any], output: str) -> tuple[list[float], int, float]:
    """(CPU milliseconds of each request, tokens of the last prompt, tokens for each unique token)."""
    sent: list[Request] = []

    answer = response(
        [*prompts.template.tokenizer.encode(CALL, add_special_tokens=False), *prompts.template.stop_token_ids[:1]]
    )

    def say(request: Request) -> Any:
        sent.append(request)
        return answer

    async with served(say, prompts=prompts) as trial:
        pipe = asyncio.subprocess.PIPE
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, stdin=pipe, stdout=pipe)
        assert client.stdin is not None and client.stdout is not None
        began = time.process_time()
        client.stdin.write(json.dumps([path, trial.port, trial.key, body, output, TURNS + 1]).encode())
        client.stdin.write_eof()
        times = []
        while await client.stdout.readline():
            now = time.process_time()
            times.append(1000 * (now - began))
            began = now
        await client.wait()
        return times, len(sent[-1].prompt_T), trial.exchange.stats["wire_tokens_per_unique_token"]


async def measure(model: str) -> None:
    template = template_of(model)
    began = time.process_time()
    Prompts(template).template.first_prompt([{"role": "user", "content": QWEN_TOOLS.end}])
    print(f"once a process: {1000 * (time.process_time() - began):.0f} ms")
    text = "\n".join(file.read_text() for file in sorted((ROOT / "docs").glob("*.md")))
    output = text[-1200:]
    for wire, (path, body) in requests(text).items():
        prompts = Prompts(template)  # nothing kept: the first prompt of a run
        cold, tokens, ratio = await session(prompts, path, body, output)
        warm, _, _ = await session(prompts, path, body, output)
        turns = cold[1:] + warm[1:]
        print(
            f"{wire:10} first prompt {cold[0]:6.1f} ms, in a group {warm[0]:5.1f} ms; a turn "
            f"{statistics.median(turns):4.1f} ms (worst {max(turns):4.1f}); {tokens} tokens at the end, "
            f"{ratio:.3f} a unique token"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.wire", description=__doc__)
    parser.add_argument("model", nargs="?", default="", help="a tokenizer's folder or hub name")
    asyncio.run(measure(parser.parse_args(arguments).model))


if __name__ == "__main__":
    main()
