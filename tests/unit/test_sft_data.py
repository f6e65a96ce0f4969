"""Conversations of fine-tuning: the ids of the trainer, chosen trials, whole tasks held out, one line for bad data."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harbor.llms.chat import Chat

from harbortrainer.errors import UserError
from harbortrainer.learning.datums import training_sequences
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.policy.tinker_llm import TinkerLLM
from harbortrainer.sft.conversation import of_messages
from harbortrainer.sft.dataset import Dataset, load_dataset
from harbortrainer.sft_config import SftConfig
from tests.support.conversations import conversation, write_conversations, write_run
from tests.support.fakes import CHATML, LLAMA3, QWEN3, ScriptedClient, byte_tokenizer, chat_template


def load(**settings: Any) -> Dataset:
    lists = {name: tuple(map(str, settings.pop(name))) for name in ("data", "runs") if name in settings}
    return load_dataset(SftConfig(model_name="models/one", **lists, **settings), chat_template())


def names(dataset: Dataset) -> list[str]:
    return [one.name.rpartition("/")[2] for one in dataset.train]


@pytest.mark.parametrize("template", [QWEN3, CHATML, LLAMA3])
async def test_the_ids_are_those_that_a_trial_with_these_answers_would_have(template: str) -> None:
    chat, said = chat_template(template), ["first", "  second with a tail  ", "last"]
    sampler = PolicySampler(attempts=1)
    sampler.publish(ScriptedClient(said, chat), 0)
    llm = TinkerLLM(sampler, chat, max_tokens=500, temperature=1.0, context_limit=4000)
    talk, messages = Chat(llm), []
    for number, answer in enumerate(said):
        await talk.chat(f"screen {number}\n\n")
        messages += [
            {"role": "user", "content": f"screen {number}\n\n"},
            {"role": "assistant", "content": answer},
        ]
    (sampled,) = training_sequences(Trajectory("t", "n", tuple(llm.turns), 1.0, Outcome.COMPLETED), 1.0)
    (written,) = of_messages(messages, chat, name="n", task=None, source="f").sequences_D
    assert written.tokens_T.tolist() == sampled.tokens_T.tolist()
    assert written.mask_T.tolist() == sampled.mask_T.tolist()
    assert np.array_equal(written.advantages_T, written.mask_T)


def test_a_system_message_and_neighbours_of_one_role_are_joined_as_the_template_does() -> None:
    chat = chat_template(CHATML)
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "e"},
        {"role": "user", "content": "no answer follows"},
    ]
    (sequence,) = of_messages(messages, chat, name="n", task=None, source="f").sequences_D
    text = chat.tokenizer.decode(sequence.tokens_T.tolist())
    assert "system\nbe brief" in text and "c\n\nd" in text and "no answer follows" not in text
    assert chat.tokenizer.decode(sequence.tokens_T[sequence.mask_T].tolist()) == "b<|im_end|>e<|im_end|>"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1: "),
        ('{"text": "x"}', 'line 1: must be an object with a list "messages"'),
        ("[]", 'line 1: must be an object with a list "messages"'),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no message of the role assistant"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "message 1: an answer without a prompt"),
        ('{"messages": [{"role": "function", "content": "x"}]}', "message 1: role 'function'"),
        ('{"messages": [], "tools": {"name": "x"}}', '"tools" must be a list of objects {"type": "function"'),
        ('{"messages": [], "tools": [{"name": "x"}]}', '"tools" must be a list of objects {"type": "function"'),
        ('{"messages": [], "tools": [{"function": {"parameters": {}}}]}', "line 1: tools: a function has no name"),
        ('{"messages": [{"role": "user", "content": " "}]}', "message 1: content must be text"),
        ('{"messages": ["x"]}', "message 1: must be an object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "d.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"data=.*d.jsonl: line 1") as refused:
        load(data=[tmp_path / "d.jsonl"])
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_file_and_an_empty_one_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data=.*nowhere: cannot be read \(No such file"):
        load(data=[tmp_path / "nowhere"])
    (tmp_path / "d.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match=r"data=.*d.jsonl: no conversation"):
        load(data=[tmp_path / "d.jsonl"])


def test_what_is_too_long_is_left_out_and_counted(tmp_path: Path) -> None:
    file = write_conversations(tmp_path / "d.jsonl", [conversation("a", "b"), conversation("a" * 900, "b")])
    dataset = load(data=[file], context_limit=500)
    assert names(dataset) == ["d.jsonl:1"]
    assert "1 of 2 conversations are left out: longer than context_limit=500" in dataset.notes[0]
    with pytest.raises(UserError, match="context_limit=20: every conversation is longer"):
        load(data=[file], context_limit=20)


REWARDS: dict[str, Sequence[float | None]] = {"one": (1.0, 0.0, None, 1.0), "two": (0.5, 0.25, 0.5), "held": (1.0, 1.0)}


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, ["s000000-p00-g00", "s000000-p00-g03"]),
        ({"min_reward": 0.5}, ["s000000-p00-g00", "s000000-p00-g03", "s000000-p01-g00", "s000000-p01-g02"]),
        ({"min_reward": 0.0, "best_of_group": True}, ["s000000-p00-g00", "s000000-p00-g03", "s000000-p01-g00",
                                                     "s000000-p01-g02"]),
        ({"min_reward": 0.0, "best_of_group": True, "max_per_task": 1, "seed": 1}, ["s000000-p00-g03",
                                                                                  "s000000-p01-g00"]),
    ],
)  # fmt: skip
def test_trials_are_taken_by_reward_and_never_of_held_out_tasks(tmp_path: Path, settings: Any, kept: list[str]) -> None:
    run = write_run(tmp_path / "run", REWARDS, held_out=["held"])
    found = load(runs=[run], **settings)
    if settings.get("max_per_task"):
        assert len(found.train) == 2 and {one.task for one in found.train} == {"one", "two"}
    else:
        assert names(found) == kept
    (sequence,) = found.train[0].sequences_D
    assert sequence.tokens_T[sequence.mask_T].tolist() == [70, 80, 71, 80], "the sampled ids, untouched"
    assert not sequence.logprobs_T.any() and np.array_equal(sequence.advantages_T, sequence.mask_T)


def test_a_task_that_any_of_the_runs_holds_out_is_never_taken(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", {"x": (1.0,), "y": (1.0,)})
    other = write_run(tmp_path / "other", {"z": (1.0,)}, held_out=["y"])
    assert {c.task for c in load(runs=[one, other]).train} == {"x", "z"}
    with pytest.raises(UserError, match=r"runs=.*: no trial of .* has a reward of 1 or more"):
        load(runs=[write_run(tmp_path / "third", {"y": (1.0,)}, held_out=["y"])])


def test_trials_that_were_rendered_otherwise_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": (1.0,)}, model_name="models/two")
    with pytest.raises(UserError, match="sampled with model_name=models/two, this run has models/one"):
        load(runs=[run])
    policy = {"renderer": "chat_template:other", "thinking": "none"}
    (run / "effective.json").write_text(json.dumps({"policy": policy}))
    with pytest.raises(UserError, match="sampled with chat_template:other and thinking none"):
        load(runs=[run])


@pytest.mark.parametrize("model", ["models/one", "models/two"])
def test_an_evaluation_without_model_name_has_that_of_its_policies(tmp_path: Path, model: str) -> None:
    """As `checkpoint=base against=RUN` leaves it: the server knows the base model, the plan names that of the run."""
    run = write_run(tmp_path / "evaluation", {"x": (1.0,)}, model_name=None, trials=1)
    (run / "trajectories" / "step_000000").rename(run / "trajectories" / "eval_000000")
    subjects = [{"name": "base", "model_name": None, "run": None}, {"name": "r@3", "model_name": model, "run": None}]
    (run / "plan.json").write_text(json.dumps({"subjects": subjects}))
    if model == "models/one":
        assert [one.task for one in load(runs=[run]).train] == ["x"]
    else:
        with pytest.raises(UserError, match="sampled with model_name=models/two, this run has models/one"):
            load(runs=[run])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"messages": [', r"no JSON object \(Expecting value at column 15\)"),
        (b'{"messages": "\xff"}', r"not UTF-8 \(invalid start byte at byte 15\)"),
    ],
)
def test_a_broken_line_is_named_with_its_place(line: bytes, why: str, tmp_path: Path) -> None:
    file = Path(write_conversations(tmp_path / "d.jsonl", [conversation("p", "a")]))
    file.write_bytes(file.read_bytes() + line + b"\n")
    with pytest.raises(UserError, match=rf"^data=.*d\.jsonl: line 2: {why}"):
        load(data=[str(file)])


def test_whole_tasks_are_held_out_and_the_seed_draws_them(tmp_path: Path) -> None:
    records = [conversation(f"p{n}", "a", task=f"t{n % 5}") for n in range(20)]
    records += [conversation("same prompt", f"answer {n}") for n in range(3)]
    file = write_conversations(tmp_path / "d.jsonl", records)
    drawn = set()
    for seed in range(6):
        dataset = load(data=[file], eval_split=0.34, seed=seed)
        train, held_out = ({one.task for one in part} for part in (dataset.train, dataset.held_out))
        assert len(held_out) == 2 and not train & held_out and len(dataset.train) + len(dataset.held_out) == 23
        assert load(data=[file], eval_split=0.34, seed=seed).record() == dataset.record()
        drawn.add(frozenset(held_out))
    assert len(drawn) > 1
    with pytest.raises(UserError, match=r"eval_split=0.95: would hold out all 6 tasks"):
        load(data=[file], eval_split=0.95)


def test_tools_are_declared_in_the_first_prompt_and_their_results_are_no_answers(tmp_path: Path) -> None:
    chat = ChatTemplate(byte_tokenizer(CHATML), tool_format="hermes")
    record = {
        "tools": [{"type": "function", "function": {"name": "look", "description": "see", "parameters": {}}}],
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "tool", "content": "c"},
            {"role": "assistant", "content": "d"},
        ],
    }
    file = write_conversations(tmp_path / "d.jsonl", [record])
    config = SftConfig(model_name="m", data=(str(file),), tool_format="hermes")
    (sequence,) = load_dataset(config, chat).train[0].sequences_D
    text = chat.tokenizer.decode(sequence.tokens_T.tolist())
    assert text.index("be brief") < text.index('{"name": "look", "description": "see"') < text.index("user\na")
    assert "user\n<tool_response>\nc\n</tool_response>" in text
    assert chat.tokenizer.decode(sequence.tokens_T[sequence.mask_T].tolist()) == "b<|im_end|>d<|im_end|>"
    with pytest.raises(UserError, match="does not show the declared tools; set tool_format=hermes"):
        load(data=[file])
    early = write_conversations(tmp_path / "e.jsonl", [record | {"messages": record["messages"][3:]}])
    with pytest.raises(UserError, match="line 1: message 1: a tool message must stand behind the first answer"):
        load_dataset(SftConfig(model_name="m", data=(str(early),)), chat)
