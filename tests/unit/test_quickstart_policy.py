"""The shipped policy: its files, its tokenizer and the transcripts it was pretrained on."""

import json
import random
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from harbortrainer.policy.chat_template import ChatTemplate
from scripts.quickstart import answers, prompts
from scripts.quickstart.cases import make_case
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.make_tasks import make_cases, reserved_words
from scripts.quickstart.shape import Shape, random_weights, read_shape
from scripts.quickstart.terminal import SimulatedTerminal
from scripts.quickstart.transcripts import act, segments
from scripts.quickstart.vocabulary import TURN_END, build_tokenizer
from scripts.quickstart.words import Words

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


def test_transcripts_are_cut_where_a_sampler_cuts(template: ChatTemplate) -> None:
    rng = random.Random(3)
    exchanges = act(make_case(KINDS[2], Words(rng), rng), rng)
    parts = [template.tokenizer.encode(text, add_special_tokens=False) for text, _ in segments(exchanges)]
    assert parts[0] == template.first_prompt([{"role": "user", "content": exchanges[0].said}])
    assert template.decode(parts[1]) == exchanges[0].answered
    assert parts[1][-1] == template.stop_token_ids[0]
    assert parts[2] == template.join(parts[1], exchanges[1].said)


def test_author_of_the_transcripts_is_wrong_more_often_than_right() -> None:
    rng, right, count = random.Random(0), 0, 2000
    reserved = reserved_words()
    for _ in range(count):
        case = make_case(rng.choice(KINDS), Words(rng, reserved), rng)
        assert not case.words & (reserved - {"txt", "md", "log", "csv", "sh", "echo"} - set("123456789"))
        right += any(case.right in exchange.answered.split('keystrokes": "')[-1] for exchange in act(case, rng))
    assert 0.2 < right / count < 0.4


def test_terminal_says_what_is_new() -> None:
    case = make_cases()["folder-1"]
    terminal = SimulatedTerminal(case)
    assert terminal.observe() == prompts.SCREEN + "root@harbor:/app#" + "\n" * 40
    terminal.type("lss\n")
    shown = "root@harbor:/app# lss\nbash: lss: command not found\nroot@harbor:/app#"
    assert terminal.observe() == prompts.NEW_OUTPUT + shown + "\n" * 38
    assert terminal.observe() == prompts.NEW_OUTPUT + "\nroot@harbor:/app#" + "\n" * 38
    assert not terminal.solved


def test_terminal_knows_the_right_command_only_when_it_came_first() -> None:
    case = make_cases()["rename-1"]
    for commands, solved in (([case.right], True), ([case.wrong[0].typed, case.right], False), ([], False)):
        terminal = SimulatedTerminal(case)
        for command in commands:
            terminal.type(command + "\n")
        assert terminal.solved is solved


def test_late_screen_misses_the_prompt_that_follows() -> None:
    case = make_cases()["create-1"]
    terminal = SimulatedTerminal(case)
    terminal.observe()
    terminal.type(case.right + "\n")
    assert terminal.observe(late=True).rstrip("\n").endswith(case.right)
    assert terminal.observe().rstrip("\n").endswith("root@harbor:/app#")
