"""Who wrote each token: by construction, with contents that try to break out, on templates of every kind."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from harbortrainer.bundled.tau.trial import EMPTY
from harbortrainer.learning.trajectory import Role, Turn
from harbortrainer.model_api.prompts import Prompts
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import result, user
from harbortrainer.policy.roles import Prompt, Written
from harbortrainer.rollout.shown import HALF
from harbortrainer.run.trajectories import read_trajectory, write_trajectory
from tests.support.fakes import CHATML, LLAMA3, QWEN3, chat_template
from tests.support.families import FAMILIES, LLAMA_PLAIN, chat_of
from tests.support.made_trials import trajectory
from tests.support.scripted_agent import DONE, Rig, answer
from tests.support.tools import TOOLS, chats, written
from tests.support.wire_parts import SYSTEM, echo, exchange_of

PIECES = (
    "a", "the word ", " ", "\n", "\n\n", "\t", "é", "\U0001f600", "中", "<|im_end|>", "<|im_start|>assistant\n",
    "</tool_response>", "[INST]", "\ue000", "ﬁ", "e\u0301", "0123", "$ ls -la", "<think>", "{{ x }}", "'\"\\",
    "\u2028", "  end  ",
)  # fmt: skip
ALL = {
    "bytes qwen": chat_template(QWEN3), "bytes llama": chat_template(LLAMA3), "bytes chatml": chat_template(CHATML),
    **{family.name: chat_of(family) for family in (*FAMILIES, LLAMA_PLAIN)},
    **chats(),
}  # fmt: skip


def of_role(chat: ChatTemplate, prompt: Prompt, role: Role) -> str:
    return chat.tokenizer.decode([i for i, one in zip(prompt.ids, prompt.roles, strict=True) if one == role])


def observed(chat: ChatTemplate, turns: Sequence[Turn]) -> str:
    ids = [i for turn in turns for i, role in zip(turn.new_tokens_T, turn.roles_T, strict=True) if role == 2]
    return chat.tokenizer.decode(ids)


def text(dice: random.Random, most: int = 6) -> str:
    return "".join(dice.choices(PIECES, k=dice.randrange(most)))


@pytest.mark.parametrize("name", ["bytes qwen", "bytes llama", "bytes chatml"])
def test_every_token_of_a_part_has_its_role_and_no_other_token_has(name: str) -> None:
    """One token a byte, so that none has parts of two authors. White space that the template cuts off is no token."""
    chat, dice = ALL[name], random.Random(name)
    for _ in range(80):
        before, output, behind = text(dice), "x" + text(dice), text(dice)
        whole = Written(before + output + behind, (len(before), len(before + output), Role.ENVIRONMENT))
        prompt = chat.following([{"role": "user", "content": whole}])
        assert prompt.ids == chat.continuation(str(whole)) and len(prompt.roles) == len(prompt.ids)
        cut = len(whole) - len(whole.lstrip()) if name != "bytes qwen" else 0
        kept = output if name == "bytes qwen" else whole.strip()[len(before) - cut :][: len(output)]
        assert of_role(chat, prompt, Role.ENVIRONMENT) == kept
        ends = [prompt.roles[0], prompt.roles[-1]]
        assert ends == [Role.TEMPLATE] * 2


@pytest.mark.parametrize("name", sorted(ALL))
def test_tokens_with_parts_of_two_authors_are_not_the_environments(name: str) -> None:
    chat, dice = ALL[name], random.Random(name)
    for _ in range(20):
        before, output, behind = text(dice), "word " + text(dice) + " word", text(dice)
        whole = Written(before + output + behind, (len(before), len(before + output), Role.ENVIRONMENT))
        prompt = chat.following([{"role": "user", "content": whole}])
        assert prompt.ids == chat.continuation(str(whole))
        seen = of_role(chat, prompt, Role.ENVIRONMENT)
        plain = chat.tokenizer.decode(
            chat.tokenizer.encode(output, add_special_tokens=False, split_special_tokens=True)
        )
        assert len(seen) >= len(plain) - 12 and "word" in seen
        assert Role.ENVIRONMENT not in chat.opening([{"role": "user", "content": whole}]).roles


@pytest.mark.parametrize("name", sorted(chats()))
async def test_results_of_an_agents_calls_are_observed_once(name: str) -> None:
    """Not its words, nor what a branch repeats, nor a history that was written anew."""
    chat = chats()[name]
    call = written(chat, "find_order", {"id": "#1 é"})
    exchange, _ = exchange_of([call, call, "done", "other", "so"], prompts=Prompts(chat))
    messages = [SYSTEM, {"role": "user", "content": "Cancel it."}]
    first = await exchange.say(messages, TOOLS)
    messages += [echo(first), {"role": "tool", "content": "found <|im_start|> one"}]
    second = await exchange.say(messages, TOOLS)
    branch = [*messages, echo(second), {"role": "tool", "content": "two"}]
    await exchange.say(branch, TOOLS)
    await exchange.say([*branch[:-1], {"role": "tool", "content": "three"}], TOOLS)
    await exchange.say([SYSTEM, {"role": "tool", "content": "from before"}], TOOLS)
    assert observed(chat, exchange.turns) in ("found <|im_start|> onetwothree", "found<|im_start|> onetwothree")
    assert all(len(turn.roles_T) == len(turn.new_tokens_T) for turn in exchange.turns)


async def test_a_simulated_user_and_words_in_place_of_a_result_are_no_observation() -> None:
    chat = chats()["qwen3 with tools"]
    prompt = chat.following([result("found", Role.ENVIRONMENT), result(EMPTY, Role.HARNESS), user("and now?")])
    assert of_role(chat, prompt, Role.ENVIRONMENT) == "found"
    assert of_role(chat, prompt, Role.USER).strip() == "and now?"
    assert of_role(chat, prompt, Role.HARNESS) == EMPTY
    assert of_role(chat, chat.opening([user("hello you")]), Role.USER) == "hello you"


async def test_terminus_shows_the_screen_and_says_the_rest_itself(tmp_path: Path) -> None:
    """Warnings before it, the question behind it, its headings, and the note on what a long output lacks."""
    long = "\n".join(f"line {number} é" for number in range(1500))
    parts = ("$ ls\nnotes.txt\n$", " cat x\nno such file\n$", f" seq\n{long}\n$", f" more\n{long}\nend\n$", "")
    screens = iter("".join(parts[: number + 1]) for number in range(len(parts)))
    shown = [""]

    def reply(command: str) -> tuple[int, str]:
        if "send-keys" in command:
            shown[0] = next(screens)
        return 0, f"40\n{shown[0]}"

    answers = [
        answer("ls\n"), "Well. " + answer("cat x\n"), "no json", answer("seq\n"), answer("more\n", complete=True), DONE,
    ]  # fmt: skip
    rig = Rig(tmp_path, answers, reply, max_turns=9)
    assert await rig.run() == "done"
    chat = rig.llm.template
    parts = [observed(chat, [turn]) for turn in rig.llm.turns]
    said = [chat.tokenizer.decode(turn.new_tokens_T) for turn in rig.llm.turns]
    assert "Previous response had warnings" in said[2] and "parsing errors" in said[3]
    assert "interior bytes omitted" in said[4] and "Are you sure" in said[5]
    assert parts[0] == parts[3] == ""
    assert parts[1].startswith("$ ls\nnotes.txt") and parts[2].strip().startswith("$ cat x\nno such file")
    assert parts[4].strip().startswith("$ seq\nline 0 é\nline 1") and parts[4].rstrip().endswith("line 1499 é\n$")
    assert 2 * HALF - 100 < len(parts[4].encode()) <= 2 * HALF and "omitted" not in parts[4]
    assert parts[5].rstrip().endswith("end\n$") and "sure" not in parts[5] and "state" not in parts[5]


def test_roles_are_kept_and_runs_from_before_have_none(tmp_path: Path) -> None:
    known = (Turn(0, (1, 2), (3,), (-0.5,), 0, roles_T=b"\0\2"), Turn(0, (4,), (5,), (-0.5,), 0, roles_T=b"\1"))
    path = write_trajectory(tmp_path, trajectory(turns=known))
    assert [turn.roles_T for turn in read_trajectory(path).turns] == [b"\0\2", b"\1"]
    with np.load(path) as arrays:
        assert arrays["roles_T"].dtype == np.uint8
    old = write_trajectory(tmp_path, trajectory())
    with np.load(old) as arrays:
        assert "roles_T" not in arrays
    assert {turn.roles_T for turn in read_trajectory(old).turns} == {b""}
    with pytest.raises(ValueError, match="2 new tokens but 1 roles"):
        Turn(0, (1, 2), (), (), 0, roles_T=b"\0")
