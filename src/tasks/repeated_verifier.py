"""Harbor's verifier, and its script again and again on the same state: what differs then is the verifier's doing."""

import asyncio
import json
import shlex
import time
from pathlib import Path
from typing import Any, override

from harbor.models.trial.paths import EnvironmentPaths
from harbor.models.verifier.result import VerifierResult
from harbor.utils.env import resolve_env_vars
from harbor.verifier.verifier import Verifier

from src.rollout.harbor import boundary
from src.tasks.agents import cut_network

REPEATS_FILE = "repeats.json"  # in the trial's directory: the rewards as the script wrote them, "" = none
_FOLDER = EnvironmentPaths.verifier_dir
_AGAIN = """cd {folder} && rm -f reward.txt reward.json; cd - > /dev/null
({script}) > /dev/null 2>&1 < /dev/null
sleep {pause}
printf 'reward '; if [ -f {folder}/reward.json ]; then tr -d '\\n' < {folder}/reward.json
elif [ -f {folder}/reward.txt ]; then tr -d '\\n' < {folder}/reward.txt; fi; echo"""


class RepeatedVerifier(Verifier):
    """`repeats` more runs, as many as fit into `seconds`. The first one is bound by the task's own limit.

    `pause`: seconds before a reward is read, in which a process that writes rewards has its turn on a busy machine.
    """

    def __init__(
        self,
        *args: Any,
        repeats: int = 0,
        seconds: float = 0.0,
        pause: float = 0.0,
        offline: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._repeats = repeats
        self._seconds = seconds
        self._pause = pause
        self._offline = offline

    @override
    @boundary
    async def verify(self) -> VerifierResult:
        if self._offline:
            await cut_network(self.environment)
        began = time.monotonic()
        async with asyncio.timeout(self.task.config.verifier.timeout_sec):
            result = await super().verify()
        script = self.task.paths.discovered_test_path_for(self.environment.os)
        if self._repeats and script is not None and not self.task.config.steps:
            each = time.monotonic() - began + self._pause
            rewards = await self._again(script, min(self._repeats, int(self._seconds / max(each, 0.001))))
            (self.trial_paths.trial_dir / REPEATS_FILE).write_text(json.dumps(rewards))
        return result

    async def _again(self, script: Path, repeats: int) -> list[str]:
        """All in one command, in a shell that waits for each. What a hanging one would have said is left out."""
        inside = EnvironmentPaths.tests_dir / script.relative_to(self.task.paths.tests_dir).as_posix()
        once = _AGAIN.format(folder=_FOLDER, script=shlex.quote(str(inside)), pause=self._pause)
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
