"""Harbor's verifier, without its reading of reward files that a container may have made large, endless, or no files."""

import json
import math
import os
import stat
from pathlib import Path
from typing import cast, override

from harbor.verifier.verifier import Verifier, VerifierOutputParseError

from harbortrainer.docker.box.archive import REWARD


class SafeVerifier(Verifier):
    """Harbor's, but what lies beside a number `reward` may be anything, as notes of the verifier.

    A reward file that is no regular one, or larger than REWARD, raises VerifierOutputParseError.
    """

    @override
    def _parse_reward_text(self) -> dict[str, float | int]:
        _check(self.trial_paths.reward_text_path)
        return super()._parse_reward_text()

    @override
    def _parse_reward_json(self) -> dict[str, float | int]:
        _check(self.trial_paths.reward_json_path)
        try:
            rewards: object = super()._parse_reward_json()
        except VerifierOutputParseError:
            if (reward := _named_reward(self.trial_paths.reward_json_path)) is None:
                raise
            return {"reward": reward}
        if not isinstance(rewards, dict):
            raise VerifierOutputParseError(f'reward.json is {rewards}, not an object such as {{"reward": {rewards}}}')
        return cast("dict[str, float | int]", rewards)


def _named_reward(file: Path) -> float | None:
    """Return the finite number that a JSON file calls `reward`; None = there is no such number."""
    try:
        found = json.loads(file.read_text())
    except ValueError:
        return None
    value = found.get("reward") if isinstance(found, dict) else None
    return value if isinstance(value, int | float) and -math.inf < value < math.inf else None


def _check(file: Path) -> None:
    """Raises VerifierOutputParseError also for a link that leads out of the folder."""
    found = os.stat(file)
    if not stat.S_ISREG(found.st_mode) or not file.resolve().is_relative_to(file.parent.resolve()):
        raise VerifierOutputParseError(f"{file} is no regular file of its folder")
    if found.st_size > REWARD.size:
        raise VerifierOutputParseError(f"{file} has {found.st_size:,} bytes, more than {REWARD.size:,}")
