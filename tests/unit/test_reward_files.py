"""What a container may leave where a reward, or what its tests printed, should be."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths
from harbor.verifier.verifier import DownloadVerifierDirError, VerifierOutputParseError

from harbortrainer.docker.box.archive import REWARD
from harbortrainer.venues.harbor.grading import GradingVerifier, is_machines_fault
from harbortrainer.venues.harbor.install import outputs
from harbortrainer.venues.harbor.reward_files import SafeVerifier
from tests.support.docker_parts import environment_of
from tests.support.task_folder import write_task


@pytest.fixture
def verifier(tmp_path: Path) -> SafeVerifier:
    made = object.__new__(SafeVerifier)
    made.trial_paths = TrialPaths(tmp_path / "trial")
    made.trial_paths.verifier_dir.mkdir(parents=True)
    (tmp_path / "outside").write_text("1")
    return made


def _large(file: Path) -> None:
    file.touch()
    os.truncate(file, REWARD.size + 1)


def _leading_out(file: Path) -> None:
    file.symlink_to("../../outside")


SPOILT: dict[str, Callable[[Path], None]] = {
    "large": _large,
    "folder": Path.mkdir,
    "pipe": lambda file: os.mkfifo(file),
    "device": lambda file: file.symlink_to("/dev/zero"),
    "leads-out": _leading_out,
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_file_that_is_none_is_refused_and_not_waited_for(kind: str, spoilt: str, verifier: SafeVerifier) -> None:
    paths = verifier.trial_paths
    SPOILT[spoilt](paths.reward_text_path if kind == "text" else paths.reward_json_path)
    with pytest.raises(VerifierOutputParseError):
        verifier._parse_reward_text() if kind == "text" else verifier._parse_reward_json()


def test_a_reward_may_be_a_link_within_its_folder(verifier: SafeVerifier) -> None:
    paths = verifier.trial_paths
    (paths.verifier_dir / "result").write_text("0.5")
    paths.reward_text_path.symlink_to("result")
    paths.reward_json_path.write_text('{"reward": 1}')
    assert verifier._parse_reward_text() == {"reward": 0.5} and verifier._parse_reward_json() == {"reward": 1}


def test_beside_a_reward_may_be_what_is_no_number(verifier: SafeVerifier) -> None:
    file = verifier.trial_paths.reward_json_path
    for beside in ("[1.0, 0.5]", '"why"', "null", "NaN", '{"rows": 5}'):
        file.write_text(f'{{"reward": 0.5, "rows": {beside}, "success": 1}}')
        assert verifier._parse_reward_json() == {"reward": 0.5}, beside
    others = "1", "true", '["reward"]', '{"reward": 1'
    for wrong in ('{"reward": [1.0]}', '{"reward": NaN}', '{"score": 1.0, "why": "x"}', *others):
        file.write_text(wrong)
        with pytest.raises(VerifierOutputParseError):
            verifier._parse_reward_json()


@pytest.mark.parametrize("image", ['docker_image = "a"\n', "", None])
def test_tests_of_a_verifiers_own_image_are_left_as_it_has_them(tmp_path: Path, image: str | None) -> None:
    """`image`: of the verifier; None = tests/Dockerfile makes it, "" = it is the agent's."""
    toml = f"[verifier.environment]\n{image}" if image else '[verifier]\nenvironment_mode = "separate"\n'
    own = {} if image is not None else {"tests/Dockerfile": "FROM a\n"}
    task = Task(write_task(tmp_path / "task", toml=toml, files=own))
    verifier = GradingVerifier(task, TrialPaths(tmp_path), environment_of(task.task_dir, ""))
    assert bool(verifier._resolve_tests()[0]) is (image == "")


def test_a_reward_that_a_full_disk_does_not_take_is_the_machines_fault() -> None:
    error = DownloadVerifierDirError()
    error.__cause__ = OSError(errno.ENOSPC, "full")
    assert is_machines_fault(error) and not is_machines_fault(DownloadVerifierDirError())


def test_of_what_tests_printed_the_beginning_and_the_end_are_read(verifier: SafeVerifier) -> None:
    paths = verifier.trial_paths
    paths.test_stdout_path.write_text("short")
    assert list(outputs(paths.trial_dir)) == ["short"]
    with paths.test_stdout_path.open("wb") as file:
        file.write(b"begin")
        file.truncate(2**40)
        file.seek(0, os.SEEK_END)
        file.write(b"end")
    (found,) = outputs(paths.trial_dir)
    assert found.startswith("begin") and found.endswith("end") and len(found) < 200_000
    paths.test_stdout_path.unlink()
    os.mkfifo(paths.test_stdout_path)
    assert list(outputs(paths.trial_dir)) == [""]
    paths.test_stdout_path.unlink()
    paths.test_stdout_path.symlink_to("../../outside")
    assert list(outputs(paths.trial_dir)) == [""]
