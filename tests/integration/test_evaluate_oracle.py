"""`python -m src.evaluate checkpoint=oracle` with real Docker and no server: solutions typed into a terminal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harbortrainer.backend.datum import check_sequence
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.datums import training_sequences
from harbortrainer.learning.trajectory import Outcome
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.run.trajectories import read_batch
from tests.conftest import ROOT
from tests.support.shapes import STEPS
from tests.support.task_folder import write_task
from tests.support.tiers import first

pytestmark = pytest.mark.usefixtures("docker_ready")
MODEL = ROOT / "models" / "quickstart"
CHOSEN = ["config-ini-to-json,count-1", "permissions-2,search-3,text-word-frequencies"]
TRICKY = r"""# Each line here would be another one at a terminal.
set -eu
cat > Makefile << 'END'
hello.txt:
	echo Hello > $@
END
echo "never!again" 'and!again' > /dev/null
git init -q
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one
git log
f() {
  rm -f hello.txt
}
f
grep -c "$(printf '\t')echo" Makefile && \
  tail -n 1 Makefile | cut -f 2 | sed 's/\$@/hello.txt/' | sh
exit 0
echo Bye > hello.txt
"""


@pytest.mark.parametrize("chosen", first(1, CHOSEN))
def test_solutions_earn_their_rewards_and_can_be_trained_on(tmp_path: Path, chosen: str) -> None:
    own = tmp_path / "own"
    write_task(own / "tricky", solve=TRICKY)
    write_task(own / "steps", **STEPS)
    write_task(own / "wrong", solve="echo Bye > hello.txt\n")
    sources = f"{ROOT / 'datasets' / 'quickstart'},{ROOT / 'datasets' / 'terminal-basics'},{own}"
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "src.evaluate", "checkpoint=oracle", f"model_name={MODEL}", f"tasks_dir={sources}",
        f"tasks_include={chosen},tricky,steps,wrong", "trials=1", f"out={out}",
    ]  # fmt: skip
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER_", "SKYRL_"))}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (policy,) = json.loads((out / "evaluation.json").read_text())["policies"]
    rewards = {task["name"]: task["rewards"] for task in policy["per_task"]}
    assert rewards == {name: [float(name != "wrong")] for name in (*chosen.split(","), "tricky", "steps", "wrong")}

    template = ChatTemplate.load(str(MODEL), False)
    trials = read_batch(out / "trajectories" / "eval_000000")
    assert {trial.outcome for trial in trials.values()} == {Outcome.COMPLETED}
    for number, trial in enumerate(trials.values()):
        sequences = training_sequences(trial, 1.0)
        assert len(sequences) == (2 if trial.task_name == "steps" else 1)
        for sequence in sequences:
            check_sequence(sequence, number, len(template.tokenizer))
            ends = sequence.tokens_T[sequence.mask_T] == template.turn_end
            assert ends.sum() >= 3 and not sequence.logprobs_T.any(), "an answer, and the end of the task said twice"
    kept = [line for file in (out / "conversations").iterdir() for line in read_lines(file)]
    messages = next(line["messages"] for line in kept if line["task"] == "tricky")
    assert any("Makefile" in message["content"] for message in messages[1::2])
    assert json.loads(messages[-1]["content"])["task_complete"] is True
