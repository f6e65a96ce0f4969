"""The shipped policies: their files, their tokenizers, and prompts and answers of the quickstart."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from harbortrainer.policy.chat_template import ChatTemplate
from scripts.desk import vocabulary as desk
from scripts.quickstart import answers, prompts
from scripts.quickstart.make_tasks import make_cases
from scripts.quickstart.shape import random_weights, read_shape
from scripts.quickstart.vocabulary import TURN_END, build_tokenizer

MODEL = Path("models/quickstart")
LONGEST_ANSWER, LONGEST_FIRST_PROMPT = 32, 48  # tokens: max_tokens of the quickstart, a prompt bucket of the server


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.load(str(MODEL), enable_thinking=False)


def first_prompt(instruction: str) -> str:
    return prompts.first_prompt(instruction + "\n", prompts.SCREEN + "root@harbor:/app#" + "\n" * 40)


@pytest.mark.parametrize(
    ("model", "most_bytes", "dtype"),
    [("quickstart", 5e6, "float32"), ("desk", 4e6, "float32"), ("shell", 2e6, "float16")],
)
def test_files_are_small_and_weights_fit_the_shape(model: str, most_bytes: float, dtype: str) -> None:
    """Those of the policies that are trained through tools, too."""
    folder = MODEL.with_name(model)
    assert sum(path.stat().st_size for path in folder.iterdir()) < most_bytes
    weights, fresh = load_file(folder / "model.safetensors"), random_weights(read_shape(folder), 0)
    assert {name: w.shape for name, w in weights.items()} == {name: w.shape for name, w in fresh.items()}
    assert {w.dtype.name for w in weights.values()} == {dtype}
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


@pytest.mark.parametrize(("model", "build"), [("quickstart", build_tokenizer), ("desk", desk.build_tokenizer)])
def test_committed_tokenizer_is_the_one_that_is_built(model: str, build: Callable[[], Any]) -> None:
    built, committed = build(), ChatTemplate.load(str(MODEL.with_name(model)), enable_thinking=False).tokenizer
    assert built.get_vocab() == committed.get_vocab()
    assert built.chat_template == committed.chat_template
    assert len(built) <= read_shape(MODEL.with_name(model)).vocab_size


@pytest.mark.parametrize("text", ["", "root@3f2a:~$ ls -la\n\n", "naïve “quotes” 日本 🙂", "\n" * 90, "babe\tbobu\x07"])
@pytest.mark.parametrize("model", ["quickstart", "desk"])
def test_any_text_survives_the_tokenizer(model: str, text: str) -> None:
    tokenizer = ChatTemplate.load(str(MODEL.with_name(model)), enable_thinking=False).tokenizer
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_prompts_and_answers_of_every_task_are_short(template: ChatTemplate) -> None:
    for case in make_cases().values():
        prompt_T = template.first_prompt([{"role": "user", "content": first_prompt(case.instruction)}])
        answer = answers.answer(answers.START[0], answers.CAREFUL, case.right, complete=False) + TURN_END
        assert len(prompt_T) <= LONGEST_FIRST_PROMPT
        assert len(template.tokenizer.encode(answer, add_special_tokens=False)) <= LONGEST_ANSWER
