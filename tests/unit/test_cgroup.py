from pathlib import Path

import pytest

from harbortrainer.docker.processes import n_tasks


@pytest.mark.parametrize("place", ["pids/docker/abc", "docker/abc", "system.slice/docker-abc.scope"])
def test_tasks_are_counted_whichever_way_the_daemon_made_the_cgroup(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "pids.current").write_text("3\n")
    assert n_tasks("abc", tmp_path) == 3
    assert n_tasks("abd", tmp_path) is None
