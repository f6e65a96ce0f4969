"""The desk policy's tokenizer and chat template: bytes, Qwen3's control tokens, a token for each phrase of its world.

As in a real Qwen3, <tool_call> and <tool_response> and their ends are single tokens that are not special, and what a
tool returns stands in a turn of the user. A declared tool, a policy and a piece of JSON are one token each.
"""

import re

from transformers import PreTrainedTokenizerFast

from examples.desk.environment import DELIVERED, ERRORS, PENDING, RESULTS, SHIPPED
from examples.desk.tasks import ITEMS, KINDS, KNOWN
from examples.desk.words import SYLLABLES
from harbortrainer.bundled.tau.domain import GREETING, domain
from harbortrainer.policy.special_strings import CALL_TAGS, RESULT_TAGS
from harbortrainer.policy.tools import CallForm, parse, signatures
from scripts.desk import author
from scripts.quickstart.vocabulary import TURN_END, TURN_START, literals, tokenizer_of

TAGS = (*CALL_TAGS, *RESULT_TAGS)
CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nThe signatures of your tools:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nWrite a call in this form:\\n<tool_call>\\n' }}
    {{- '{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def opening(tokenizer: PreTrainedTokenizerFast, said: str) -> str:
    """The desk's first prompt as text."""
    desk = domain("examples/desk")
    messages = [("system", desk.system_prompt), ("assistant", GREETING), ("user", said)]
    return str(
        tokenizer.apply_chat_template(
            [{"role": role, "content": text} for role, text in messages],
            tools=desk.schemas,
            add_generation_prompt=True,
            tokenize=False,
        )
    )


def phrases() -> list[str]:
    """Every added token that is no control token, once. None begins and ends with brackets: that would be a tag."""
    bare = tokenizer_of((), CHAT_TEMPLATE)
    controls = re.compile("|".join(map(re.escape, (TURN_START, TURN_END, *TAGS))))
    fixed = [*controls.split(opening(bare, "")), "assistant\n"]
    wordings = [f"{wording}\n{KNOWN}" for kind in KINDS for wording in kind.wordings]
    unreadable = parse(CALL_TAGS[0], CallForm(), signatures(domain("examples/desk").schemas)).failure
    results = [*RESULTS, *(f"Error: {error}" for error in ERRORS), unreadable]
    found = [*author.PHRASES, *results, *_json(), *literals(wordings), *ITEMS, *SYLLABLES, PENDING, SHIPPED, DELIVERED]
    return list(dict.fromkeys(phrase for phrase in [*fixed, *found] if len(phrase) > 1))


def _json() -> list[str]:
    """The fixed pieces of a list of orders."""
    return ['\n[{"item": "', '", "status": "', '", "order_id": "', '", "city": "', '"}, {"item": "', '"}]\n']


def build_tokenizer() -> PreTrainedTokenizerFast:
    return tokenizer_of([*TAGS, *phrases()], CHAT_TEMPLATE)
