"""Why a task's solution did not earn its reward: the cause that a user reads first."""

import json
from pathlib import Path

import pytest

from harbortrainer.qualify.evidence import Evidence, keep_output, read_evidence, why_failed, why_not_built
from tests.support.task_folder import write_task

PYTEST = """=================================== FAILURES ===================================
>       assert open("/app/hello.txt").read() == "Hello"
E       AssertionError: assert 'Bye' == 'Hello'
../tests/test_outputs.py:5: AssertionError
=========================== short test summary info ============================
FAILED ../tests/test_outputs.py::test_hello - AssertionError: assert 'Bye' == 'Hello'
FAILED ../tests/test_outputs.py::test_more - FileNotFoundError: more.txt
========================= 2 failed, 3 passed in 0.10s =========================
"""
UNITTEST = """F
======================================================================
FAIL: test_hello (test_outputs.T.test_hello)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/tests/test_outputs.py", line 4, in test_hello
    self.assertEqual(1, 2)
AssertionError: 1 != 2

FAILED (failures=1)
"""
GRPC = 'details = "failed to connect to all addresses; last error: ipv4:127.0.0.1:5328: Connection refused"'


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (
            Evidence(tests=PYTEST),
            "the tests say: FAILED ../tests/test_outputs.py::test_hello - AssertionError: assert 'Bye' == 'Hello', "
            "and 1 more",
        ),
        (Evidence(tests=UNITTEST), "the tests say: AssertionError: 1 != 2"),
        (Evidence(tests="ok 1 - a\nnot ok 2 - b\n"), "the tests say: not ok 2 - b"),
        (Evidence(tests="checking\nthe file \x1b[31mdiffers\x1b[0m\n\n"), "the tests printed last: the file differs"),
        (Evidence(), "the tests printed nothing"),
        (
            Evidence(solution="x.sh: line 3: foo: command not found\ndone\n", tests="no hello.txt\n"),
            "the solution printed: x.sh: line 3: foo: command not found; the tests printed last: no hello.txt",
        ),
        (
            Evidence(solution="a\nb failed\n", status=3, tests=UNITTEST),
            "the solution ended with exit code 3: b failed; the tests say: AssertionError: 1 != 2",
        ),
        (Evidence(status=1), "the solution ended with exit code 1: it printed nothing"),
        (
            Evidence(solution="curl: (6) Could not resolve host: x.invalid\n", status=6),
            "the solution could not fetch from the network: curl: (6) Could not resolve host: x.invalid",
        ),
        (Evidence(tests=GRPC, ports=frozenset()), "nothing listened on port 5328 when verification began; "),
        (Evidence(tests=GRPC, ports=frozenset({80})), "nothing listened on port 5328 when verification began (on 80 "),
        (Evidence(tests=GRPC, ports=frozenset({5328})), "the tests could not connect: details = "),
        (
            Evidence(tests="<urlopen error [Errno 111] Connection refused>", ports=frozenset()),
            "nothing listened on port 8123 when verification began; ",
        ),
    ],
)
def test_the_cause_stands_first(tmp_path: Path, left: Evidence, why: str) -> None:
    task = write_task(tmp_path / "t", files={"instruction.md": "Serve 25 files at http://localhost:8123/.\n"})
    assert why_failed(task, left, "", late=False).startswith(why)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            "VerifierTimeoutError: Verifier execution timed out after 188.0 seconds",
            "verification was not over after 7 s",
        ),
        ("RewardFileNotFoundError: No reward file", "the tests wrote no /logs/verifier/reward.txt"),
        ("RewardFileEmptyError: empty", "the tests left an empty reward; the tests printed last: all fine"),
        ("VerifierOutputParseError: Non-finite reward nan", "the reward cannot be read: Non-finite reward nan"),
        ("RuntimeError: no container", "RuntimeError: no container"),
    ],
)
def test_what_prevented_a_grade_is_said_in_words(tmp_path: Path, fault: str, why: str) -> None:
    task = write_task(tmp_path / "t", toml="[agent]\ntimeout_sec = 3.0\n[verifier]\ntimeout_sec = 7.0\n")
    assert why_failed(task, Evidence(tests="all fine\n"), fault, late=False).startswith(why)
    late = why_failed(task, Evidence(), "", late=True)
    assert late == "the solution was not over after 3 s, the agent's timeout_sec in task.toml"


def test_evidence_is_read_from_the_trials_folder(tmp_path: Path) -> None:
    for step, code in (("one", ""), ("two", "4")):
        folder = tmp_path / "steps" / step
        (folder / "agent").mkdir(parents=True)
        (folder / "verifier").mkdir()
        (folder / "agent" / "oracle.txt").write_text(f"solved {step}")
        (folder / "verifier" / "test-stdout.txt").write_text(f"tested {step}")
        if code:
            (folder / "agent" / "exit-code.txt").write_text(code)
    (tmp_path / "footprint.json").write_text(json.dumps({"ports": [80]}))
    left = read_evidence(tmp_path)
    assert left == Evidence("solved one\nsolved two", "tested one\ntested two", 4, frozenset({80}))
    kept = keep_output("t", "0123456789abcdef", left).read_text()
    assert kept == "# solution: exit code 4\nsolved one\nsolved two\n# tests\ntested one\ntested two\n"
    assert read_evidence(tmp_path / "nothing") == Evidence()


BUILD = """cannot build /t/environment: The command '/bin/sh -c make' returned a non-zero code: 2
Step 1/2 : FROM base
 ---> 1c2d
Step 2/2 : RUN make
 ---> Running in 0f86
\x1b[91mmake: *** No targets.  Stop.
\x1b[0mRemoving intermediate container 0f86
"""


def test_a_build_that_fails_names_what_it_printed_last() -> None:
    assert why_not_built(BUILD) == "make: *** No targets. Stop. (Step 2/2 : RUN make)"
    assert why_not_built("cannot pull image x: not found") == "cannot pull image x: not found"
