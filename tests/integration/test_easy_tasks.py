"""terminal-easy in real containers: two tasks of each kind, one of them held out; doing nothing scores 0."""

from pathlib import Path

from scripts.easy.kinds import EASY_KINDS
from scripts.easy.make_tasks import write_tasks
from tests.support.scoring import engine, images_of, scores

NUMBERS = (1, 9)  # the first of each side


def test_nothing_scores_0_and_the_oracle_scores_1(docker_ready: str, tmp_path: Path) -> None:
    write_tasks(tmp_path)
    tasks = [tmp_path / f"{kind.name}-{number}" for kind in EASY_KINDS for number in NUMBERS]
    with engine("easy-tasks") as client, images_of(client, tasks) as images:
        assert len(set(images.values())) == len(NUMBERS)
        assert scores(client, images, tasks, "easy-tasks") == {task.name: ["0", "1"] for task in tasks}
