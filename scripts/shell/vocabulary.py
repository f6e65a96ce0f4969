"""The shell policy's tokenizer: bytes, Qwen3's control tokens, a token for each phrase of mini-swe-agent and its tasks.

The chat template is that of models/desk.
"""

import re

from transformers import PreTrainedTokenizerFast

from scripts.desk.vocabulary import CHAT_TEMPLATE, TAGS
from scripts.quickstart import answers
from scripts.quickstart.cases import ENDINGS
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.vocabulary import TURN_END, TURN_START, literals, tokenizer_of
from scripts.quickstart.words import EXTENSIONS, SYLLABLES
from scripts.shell.agent import SUBMIT, TOOL, Agent, System

PLANS = (answers.CAREFUL, *answers.CARELESS)
OPENED, CLOSED = '\n{"name": "bash", "arguments": {"command": "', '"}}\n'
_MARK = "@"  # stands for what differs between prompts


def call(command: str) -> str:
    """A call as the chat template writes it. `command`: without quotation marks and backslashes."""
    return f"{TAGS[0]}{OPENED}{command}{CLOSED}{TAGS[1]}"


def opening(agent: Agent, tokenizer: PreTrainedTokenizerFast, instruction: str, system: System) -> str:
    """The first prompt as text."""
    messages = agent.opening(instruction, system)
    shown = tokenizer.apply_chat_template(messages, tools=[TOOL], add_generation_prompt=True, tokenize=False)
    return str(shown)


def phrases(agent: Agent) -> list[str]:
    """Every added token that is no control token, once."""
    bare = tokenizer_of((), CHAT_TEMPLATE)
    cuts = re.compile("|".join(map(re.escape, (_MARK, TURN_START, TURN_END, *TAGS))))
    fixed = cuts.split(opening(agent, bare, f"{_MARK}\n", System(_MARK, _MARK)))
    results = cuts.split(f"\n{agent.result(_MARK, _MARK)}\n")
    wordings = [wording for kind in KINDS for wording in kind.wordings]
    commands = [command for kind in KINDS for command in (kind.right, *(wrong.typed for wrong in kind.wrong))]
    shown = [wrong.shown for kind in KINDS for wrong in kind.wrong]
    answered = [*(f"{plan}\n" for plan in PLANS), OPENED, CLOSED, SUBMIT]
    found = [*fixed, *results, *answered, *literals([*wordings, *ENDINGS, *commands, *shown])]
    words = [*EXTENSIONS, ".sh", *SYLLABLES, "assistant\n", "user", "SMP PREEMPT_DYNAMIC"]
    return list(dict.fromkeys(phrase for phrase in [*found, *words] if len(phrase) > 1))


def build_tokenizer(agent: Agent) -> PreTrainedTokenizerFast:
    return tokenizer_of([*TAGS, *phrases(agent)], CHAT_TEMPLATE)
