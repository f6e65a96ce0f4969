"""Prompts and continuations: exact at the level of ids, for templates that treat earlier answers differently."""

import pytest

from harbortrainer.errors import UserError
from harbortrainer.policy.chat_template import ChatTemplate, clean_text, merge_same_role, split_thinking
from tests.support.fakes import CHATML, LLAMA3, QWEN3, byte_tokenizer, chat_template


def test_thinking_switch_reaches_first_and_later_prompts() -> None:
    off, on = chat_template(QWEN3), chat_template(QWEN3, enable_thinking=True)
    message = [{"role": "user", "content": "hello"}]
    for ids_off, ids_on in [
        (off.first_prompt(message), on.first_prompt(message)),
        (off.continuation("hello"), on.continuation("hello")),
    ]:
        assert off.tokenizer.decode(ids_off).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        assert on.tokenizer.decode(ids_on).endswith("<|im_start|>assistant\n")


def test_switch_is_not_passed_to_a_template_without_it() -> None:
    assert chat_template(CHATML).first_prompt([{"role": "user", "content": "x"}]) == chat_template(
        CHATML, enable_thinking=True
    ).first_prompt([{"role": "user", "content": "x"}])


def test_other_end_of_text_also_stops() -> None:
    chat = ChatTemplate(byte_tokenizer(CHATML, "<|endoftext|>"))
    names = chat.tokenizer.convert_ids_to_tokens(chat.stop_token_ids)
    assert names == ["<|im_end|>", "<|endoftext|>"]


def test_answer_loses_special_tokens_thinking_and_nul() -> None:
    chat = chat_template()
    ids = chat.tokenizer.encode('<think>\nhm\n</think>\n\n{"a": 1}\0<|im_start|><|im_end|>')
    assert chat.answer(ids).text == '{"a": 1}'
    assert chat.answer(ids).thinking == "hm"


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    chat = chat_template()
    ids = chat.tokenizer.encode("é")[:1]
    assert chat.answer(ids).text == "\ufffd"
    assert chat.answer([]).text == ""


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>a</think>\n\nb", False, "b"),
        ("a</think>\nb", True, "b"),
        ("never closed", True, ""),
        ("<think>never closed", False, ""),
        ('{"keystrokes": "echo </think>"}', False, '{"keystrokes": "echo </think>"}'),
        ("", True, ""),
    ],
)
def test_split_thinking(text: str, opened: bool, expected: str) -> None:
    assert split_thinking(text, opened=opened).text == expected


def test_header_that_opens_thinking_is_noticed() -> None:
    template = CHATML.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
    chat = ChatTemplate(byte_tokenizer(template))
    assert chat.answer(chat.tokenizer.encode("reasons</think>\nanswer<|im_end|>")).text == "answer"


def test_clean_text_keeps_pairs_and_replaces_halves() -> None:
    assert clean_text("a\0b \ud83d\ude00 \ud83d c") == "ab 😀 \ufffd c"


def test_neighbours_of_one_role_are_merged_for_templates_that_demand_it() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert merge_same_role(messages) == [{"role": "user", "content": "a\n\nb"}]
    assert messages[0]["content"] == "a"
    assert chat_template(LLAMA3).first_prompt(messages)


def test_no_chat_template_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no chat template"):
        ChatTemplate(byte_tokenizer(None))


def test_template_that_drops_answers_is_a_user_error() -> None:
    with pytest.raises(UserError, match="drops earlier answers"):
        ChatTemplate(byte_tokenizer("{{ '<|im_start|>' + messages[-1].content + '<|im_end|>' }}"))


def test_load_from_a_directory_and_from_nowhere(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    byte_tokenizer(CHATML).save_pretrained(tmp_path / "model")
    loaded = ChatTemplate.load(str(tmp_path / "model"), enable_thinking=False)
    assert loaded.continuation("x") == chat_template(CHATML).continuation("x") and not caplog.messages
    ChatTemplate.load(str(tmp_path / "model"), enable_thinking=True)
    assert "enable_thinking=true: without effect" in caplog.text
    with pytest.raises(UserError, match=r"model_name: no tokenizer for '.*missing'") as caught:
        ChatTemplate.load(str(tmp_path / "missing"), enable_thinking=False)
    assert "\n" not in str(caught.value)
