"""The shipped policy: its files, its tokenizer and the transcripts it was pretrained on."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from harbortrainer.policy.chat_template import ChatTemplate
from scripts.quickstart import answers, prompts
from scripts.quickstart.make_tasks import make_cases
from scripts.quickstart.shape import Shape, random_weights, read_shape
from scripts.quickstart.vocabulary import TURN_END, build_tokenizer

MODEL = Path("models/quickstart")
LONGEST_ANSWER, LONGEST_FIRST_PROMPT = 32, 48  # tokens: max_tokens of the quickstart, a prompt bucket of the server


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.load(str(MODEL), enable_thinking=False)


def first_prompt(instruction: str) -> str:
    return prompts.first_prompt(instruction + "\n", prompts.SCREEN + "root@harbor:/app#" + "\n" * 40)


def test_files_are_small_and_weights_fit_the_shape() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 5_000_000
    weights = load_file(MODEL / "model.safetensors")
    shape = read_shape(MODEL)
    assert {name: w.shape for name, w in weights.items()} == {
        name: w.shape for name, w in random_weights(shape, 0).items()
    }
    assert {w.dtype.name for w in weights.values()} == {"float32"}
    assert json.loads((MODEL / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


def test_committed_tokenizer_is_the_one_that_is_built(template: ChatTemplate) -> None:
    built = build_tokenizer()
    assert built.get_vocab() == template.tokenizer.get_vocab()
    assert built.chat_template == template.tokenizer.chat_template
    assert len(built) <= Shape(vocab_size=512).vocab_size == read_shape(MODEL).vocab_size


@pytest.mark.parametrize("text", ["", "root@3f2a:~$ ls -la\n\n", "naïve “quotes” 日本 🙂", "\n" * 90, "babe\tbobu\x07"])
def test_any_text_survives_the_tokenizer(template: ChatTemplate, text: str) -> None:
    assert template.tokenizer.decode(template.tokenizer.encode(text, add_special_tokens=False)) == text


def test_prompts_and_answers_of_every_task_are_short(template: ChatTemplate) -> None:
    for case in make_cases().values():
        prompt_T = template.first_prompt([{"role": "user", "content": first_prompt(case.instruction)}])
        answer = answers.answer(answers.START[0], answers.CAREFUL, case.right, complete=False) + TURN_END
        assert len(prompt_T) <= LONGEST_FIRST_PROMPT
        assert len(template.tokenizer.encode(answer, add_special_tokens=False)) <= LONGEST_ANSWER
