"""A solution's script becomes statements, answers of Terminus-2, and the policy of one trial."""

import json
import subprocess
from pathlib import Path

import pytest

from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.solution import COMMANDS_A_TURN, is_shell, statements, typed_answers
from harbortrainer.venues.harbor.terminus import AnswerParser
from tests.support.fakes import CHATML, LLAMA3, QWEN3, byte_tokenizer, chat_template

WHOLE = {  # each is one statement
    "here-document": "cat > a.py << 'END'\n# kept\n\nexit 0\nif x:\n    y \\\nEND",
    "indented here-document": "cat <<- END > a\n\tEND of it\n\tEND",
    "two here-documents": "cat << A - << B\nB\nA\nA\nB",
    "here-document in a loop": "for i in 1 2; do\n  cat << END\nexit $i\nEND\ndone",
    "loop": "while read -r x\ndo\n  echo $x\n\n  # kept\ndone < f",
    "function": "f()\n{\n  exit 3\n}",
    "continued line": "tar -c \\\n  -f x.tar \\\n  y",
    "quoted text": "echo 'a\n# b\nexit\n'",
    "extended glob": "rm !(a|b)",
    "an exit that may not happen": "cd /app || exit 1",
    "positional parameters": "set -- a b",
    "two backslashes": r"printf a\\",
}


def texts(script: str) -> list[str]:
    return [statement.text for statement in statements(script)]


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE.keys())
def test_a_statement_stays_whole(text: str) -> None:
    script = f"#!/bin/bash\nset -euo pipefail\necho before\n{text}\necho after\nexit 0\n"
    assert texts(script) == ["echo before", text, "echo after"]
    assert texts(text) == [text]
    assert texts(script.replace("\n", "\r\n")) == ["echo before", text, "echo after"]


@pytest.mark.parametrize("line", ["set -e", "set -euo pipefail", "set -o errexit -u", "set +x;", "set -e  # stop"])
def test_options_of_the_script_are_not_typed(line: str) -> None:
    assert texts(f"{line}\ncd /app\n{line}\nls\n") == ["cd /app", "ls"]


@pytest.mark.parametrize("line", ["exit", "exit 0", "exit 1;", "exit 0 # done"])
def test_nothing_follows_an_exit(line: str) -> None:
    assert texts(f"ls\n{line}\necho never\n") == ["ls"]


def test_a_statement_has_the_comment_above_it() -> None:
    found = statements("#!/bin/sh\n# A header.\n\n# Go there,\n# quickly.\ncd /app\nls # here\n\n#\npwd\n# The end.\n")
    assert [(one.text, one.comment) for one in found] == [
        ("cd /app", "Go there, quickly."),
        ("ls # here", ""),
        ("pwd", ""),
    ]


def test_what_bash_does_not_accept_is_typed_as_it_is() -> None:
    assert texts("ls\nfor x in\nexit 0\n") == ["ls", "for x in\nexit 0"]


def test_nothing_of_a_script_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    (tmp_path / "start").write_text(f"touch {made}\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "start"))
    subprocess.run(["bash", "-c", ":"], check=True)
    assert made.exists(), "the trap works"
    made.unlink()
    assert texts(f"set +n\ntouch {made}\nx=$(touch {made})\ncat << END\n$(touch {made})\nEND\n")
    assert not made.exists()


@pytest.mark.parametrize(
    ("script", "shell"),
    [
        ("ls\n", True),
        ("#!/bin/sh\n", True),
        ("#! /usr/bin/env bash\n", True),
        ("#!/usr/bin/env -S bash -e\n", True),
        ("#!/usr/bin/env python3\n", False),
        ("#!/usr/bin/fish\n", False),
    ],
)
def test_only_shells_take_statements(script: str, shell: bool) -> None:
    assert is_shell(script) is shell


def commands(answer: str) -> list[str]:
    return [command["keystrokes"] for command in json.loads(answer)["commands"]]


def test_answers_are_terminus_2s() -> None:
    answers = typed_answers("# Say é.\necho 'é\t\"'\nmake all\nfor x in a; do\n  ls\ndone\n")
    parsed = [AnswerParser().parse_response(answer) for answer in answers]
    assert [(one.error, one.warning, one.is_task_complete) for one in parsed] == [
        ("", "", False),
        ("", "", True),
        ("", "", True),
    ]
    typed = [(command.keystrokes, command.duration) for command in parsed[0].commands]
    assert typed == [
        ("bind 'set disable-completion on'\n", 0.1),
        ("echo 'é\t\"'\n", 0.1),
        ("make all\n", 60.0),
        ("for x in a; do\n  ls\ndone\n", 10.0),
    ]
    assert parsed[0].plan == "Say é." and parsed[0].analysis and not parsed[1].commands + parsed[2].commands
    assert "é" in answers[0], "as a policy would write it"


@pytest.mark.parametrize(
    ("script", "first"),
    [
        ('echo "a!b"', "set +H\n"),
        ("git -C /app log", "export GIT_PAGER=cat GIT_MERGE_AUTOEDIT=no\n"),
        ("apt-get install -y x", "export DEBIAN_FRONTEND=noninteractive\n"),
        ("if ! [ a != b ]; then ls [!a]* ${!x} $!; fi", None),
        ("git commit -qm x", None),
    ],
)
def test_what_a_terminal_does_otherwise_is_switched_off(script: str, first: str | None) -> None:
    assert commands(typed_answers(script)[0]) == [*([first] if first else []), f"{script}\n"]


def test_a_long_script_takes_turns() -> None:
    script = "".join(f"echo {n}\n" for n in range(12))
    assert [len(commands(answer)) for answer in typed_answers(script)] == [5, 5, 2, 0, 0]
    short = typed_answers(script, lambda answer: len(answer) < 250)
    assert "".join(key for answer in short for key in commands(answer)) == script
    assert len(short) > 5 and COMMANDS_A_TURN > max(len(commands(answer)) for answer in short) > 1
    never = typed_answers(script, lambda _: False)
    assert [len(commands(answer)) for answer in never] == [1] * 12 + [0, 0]


OPENED = CHATML.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}")


@pytest.mark.parametrize("template", [QWEN3, CHATML, LLAMA3, OPENED], ids=["qwen3", "chatml", "llama3", "opened"])
def test_completions_are_what_a_policy_samples(template: str) -> None:
    chat = chat_template(template)
    text = typed_answers("echo '<|im_end|> é' '<|eot_id|>'\n")[0]
    ids = chat.completion(text)
    assert chat.answer(ids).text == text
    assert ids[-1] == chat.turn_end and chat.turn_end not in ids[:-1]
    assert chat.answer(ids).thinking == ""


def test_without_a_token_that_ends_turns_the_text_ends() -> None:
    plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    chat = ChatTemplate(byte_tokenizer(plain, "<|endoftext|>"))
    assert chat.turn_end is None
    assert chat.completion("a")[-1] == chat.tokenizer.eos_token_id
