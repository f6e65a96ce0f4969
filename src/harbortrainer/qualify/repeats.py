"""The verifier of trials that qualify a task: it runs again on the same state."""

import json
import shlex
import time
from pathlib import Path
from typing import Any, override

from harbor.models.trial.paths import EnvironmentPaths
from harbor.models.verifier.result import VerifierResult
from harbor.utils.env import resolve_env_vars

from harbortrainer.docker.integrity.again import Again
from harbortrainer.docker.integrity.footprint import FOOTPRINT
from harbortrainer.harbor import boundary
from harbortrainer.venues.harbor.grading import GradingVerifier

REPEATS_FILE = (
    "repeats.json"  # in the trial's directory: rewards as the script wrote them, "" = none; files of the work
)
MOST_WORK = 500  # files; of more, those in the highest folders are looked at
_FOLDER = EnvironmentPaths.verifier_dir
_AGAIN = """cd {folder} && rm -f reward.txt reward.json; cd - > /dev/null
({script}) > /dev/null 2>&1 < /dev/null
printf 'reward '; if [ -f {folder}/reward.json ]; then tr -d '\\n' < {folder}/reward.json
elif [ -f {folder}/reward.txt ]; then tr -d '\\n' < {folder}/reward.txt; fi; echo"""

# Prints which of its arguments are files with content: "1 FILE" for a program, as its mode or first line says, "0 FILE"
_KINDS = """for f do
[ -f "$f" ] && [ ! -L "$f" ] && [ -s "$f" ] || continue
l=; IFS= read -r l < "$f"; k=0; case $l in '#!'*) k=1;; esac; [ ! -x "$f" ] || k=1
printf '%s %s\\n' $k "$f"
done 2>/dev/null; true"""


class RepeatedVerifier(GradingVerifier):
    """Runs the verifier again up to `repeats` times, within `seconds`; the task's own limit bounds the first run."""

    def __init__(self, *args: Any, repeats: int, seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._repeats = repeats
        self._seconds = seconds

    @override
    @boundary
    async def verify(self) -> VerifierResult:
        began = time.monotonic()
        result = await super().verify()
        script = self.task.paths.discovered_test_path_for(self.environment.os)
        if script is not None and not self.task.config.steps:
            each = time.monotonic() - began
            number = min(self._repeats, int(self._seconds / max(each, 0.001)))
            found = {"rewards": await self._again(script, number), "work": await self._work()}
            (self.trial_paths.trial_dir / REPEATS_FILE).write_text(json.dumps(found))
        return result

    @override
    async def _judge_install(self, again: Again) -> None:
        """Do nothing: a check of tasks reports a verifier that cannot install, whoever is at fault."""

    async def _work(self) -> dict[str, bool]:
        """Files with content that the oracle left, at most MOST_WORK; of each, whether it is a program."""
        recorded = self.trial_paths.trial_dir / FOOTPRINT
        if not recorded.is_file():
            return {}
        paths = sorted(filter(str.isprintable, json.loads(recorded.read_text())["paths"]), key=_depth)[:MOST_WORK]
        listed = await self.environment.exec(f"set -- {shlex.join(paths)}\n{_KINDS}", user="root")
        return {line[2:]: line.startswith("1") for line in (listed.stdout or "").splitlines()}

    async def _again(self, script: Path, repeats: int) -> list[str]:
        """Rewards of the repeats, all run by one command; a time-out gives one repeat without a reward."""
        inside = EnvironmentPaths.tests_dir / script.relative_to(self.task.paths.tests_dir).as_posix()
        once = _AGAIN.format(folder=_FOLDER, script=shlex.quote(str(inside)))
        environment = {**self.task.config.verifier.env, **(self.verifier_env or {}), **self.override_env}
        command = f"for i in $(seq {repeats}); do\n{once}\ndone"
        try:
            output = await self.environment.exec(
                command, env=resolve_env_vars(environment) or None, timeout_sec=int(3 * self._seconds) + 5
            )
        except RuntimeError:  # timed out
            return [""]
        lines = [line for line in (output.stdout or "").splitlines() if line.startswith("reward")]
        return [line.removeprefix("reward").strip() for line in lines]


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path
