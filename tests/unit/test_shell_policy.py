"""The policy that is trained through mini-swe-agent: its files, its tokenizer, and the author of its transcripts."""

import json
from pathlib import Path

import pytest

from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.special_strings import CALL_TAGS
from harbortrainer.policy.tools import CallForm, parse, signatures
from scripts.easy.words import pools
from scripts.quickstart.make_tasks import make_cases
from scripts.quickstart.shape import read_shape
from scripts.shell import demonstrations
from scripts.shell.agent import CONFIG, PACK, SUBMIT, TOOL, Agent
from scripts.shell.vocabulary import PLANS, call

MODEL = Path("models/shell")
needs_pack = pytest.mark.skipif(not (PACK / CONFIG).is_file(), reason="scripts/setup.sh --agents makes the programs")
LONGEST_ANSWER = 32  # max_tokens of run_quickstart_agent.sh


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.load(str(MODEL), enable_thinking=False)


def test_the_template_writes_calls_in_the_form_of_qwen3(template: ChatTemplate) -> None:
    assert len(template.tokenizer) <= read_shape(MODEL).vocab_size
    assert template.call_form == CallForm(*CALL_TAGS, "arguments", several=True)


def test_the_authors_answers_are_short_valid_calls(template: ChatTemplate) -> None:
    needs = signatures([TOOL])
    for case in make_cases().values():
        for command in (case.right, *(one.typed for one in case.wrong), SUBMIT):
            text = f"{PLANS[0]}\n{call(command)}"
            (found,) = parse(text, CallForm(), needs).calls
            assert (found.name, found.arguments) == ("bash", {"command": command})
            assert len(template.completion(text)) <= LONGEST_ANSWER


@needs_pack
def test_the_author_of_demonstrations_writes_valid_calls_and_is_right_in_the_share_asked_for(tmp_path: Path) -> None:
    training, unseen, shown = map(set, pools())
    for share in (0.0, 0.35, 1.0):
        found = list(demonstrations.conversations(Agent(), 240, 5, share))
        right = 0
        for case, messages in found:
            assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
            calls = [parse(message["content"], CallForm(), signatures([TOOL])).calls for message in messages[2::2]]
            (work,), (last,) = calls
            assert last.arguments == {"command": SUBMIT}
            assert case.words & shown and not case.words & (training | unseen)
            right += work.arguments["command"] == case.right
        assert abs(right / len(found) - share) < 0.1 and (0 < share < 1 or right == share * len(found))
    demonstrations.write(tmp_path / "new" / "talks.jsonl", 12, 1, 0.35)
    lines = (tmp_path / "new" / "talks.jsonl").read_text().splitlines()
    assert len(lines) == 12 and all(json.loads(line)["tools"] == [TOOL] for line in lines)
