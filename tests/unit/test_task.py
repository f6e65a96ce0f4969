"""Tasks are found by name, and broken ones are named."""

from pathlib import Path

import pytest

from harbortrainer.errors import UserError
from harbortrainer.tasks.folders import digest, find_fault, load_tasks
from harbortrainer.tasks.task import Task


def make_task(folder: Path, name: str, *, without: str = "", toml: str = 'schema_version = "1.4"\n') -> Path:
    path = folder / name
    files = {
        "task.toml": toml,
        "instruction.md": f"Do {name}.\n",
        "environment/Dockerfile": "FROM scratch\n",
        "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    }
    for file, text in files.items():
        if file != without:
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (path / file).write_text(text)
    return path


def names(tasks: list[Task]) -> list[str]:
    return [task.name for task in tasks]


def test_tasks_by_name_and_other_folders_left_alone(tmp_path: Path) -> None:
    for name in ("b", "a", ".git/objects"):
        make_task(tmp_path, name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("x")
    tasks = load_tasks(str(tmp_path))
    assert names(tasks) == ["a", "b"] and all(Path(task.ref).is_absolute() for task in tasks)


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tasks_dir: .*nowhere is not a folder"):
        load_tasks(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"is not a folder; fetch it with scripts/get_terminal_bench\.sh"):
        load_tasks(str(tmp_path / "terminal-bench-2"))
    with pytest.raises(UserError, match=r"is not a folder; make it with python -m scripts\.easy\.make_tasks"):
        load_tasks(str(tmp_path / "terminal-easy"))
    with pytest.raises(UserError, match="tasks_dir: no Harbor task in"):
        load_tasks(str(tmp_path))
    for category in ("files", "shell"):
        make_task(tmp_path / category, "one")
    with pytest.raises(UserError, match=rf"in folders of it; name these: {tmp_path}/files,{tmp_path}/shell$"):
        load_tasks(str(tmp_path))
    for name in ("files", "shell"):
        (tmp_path / name).rename(tmp_path / f"of-{name}")
    make_task(tmp_path / "x/y/z", "one")
    make_task(tmp_path / "x/y/z/v", "too-deep")
    with pytest.raises(UserError, match=rf"name these: {tmp_path}/of-files,{tmp_path}/of-shell,{tmp_path}/x/y/z$"):
        load_tasks(str(tmp_path))
    (tmp_path / "task.toml").touch()
    with pytest.raises(UserError, match=r"tasks_dir=.*: a task itself; give the folder that it is in"):
        load_tasks(str(tmp_path))


def test_tasks_of_the_form_before_harbor_are_named_with_what_converts_them(tmp_path: Path) -> None:
    (tmp_path / "new ones/a").mkdir(parents=True)
    (tmp_path / "new ones/a/task.yaml").write_text("instruction: Do a.\n")
    with pytest.raises(UserError, match=rf"harbor task migrate -i '{tmp_path}/new ones' -o NEW_FOLDER$"):
        load_tasks(str(tmp_path))


@pytest.mark.parametrize(
    ("without", "toml", "reason"),
    [
        ("task.toml", "", "no task.toml"),
        ("instruction.md", "", "no instruction.md"),
        ("tests/test.sh", "", "tests/test.sh"),
        ("environment/Dockerfile", "", "no environment/Dockerfile"),
        ("", "not toml", r"task\.toml: Expected"),
        ("", '[verifier]\ntimeout_sec = "soon"\n', r"task\.toml: verifier\.timeout_sec='soon': Input should be"),
        ("", '[task]\nname = "a"\n', r"task\.toml: task\.name='a': Package name must"),
        ("", "[task]\n", r"task\.toml: task\.name: missing"),
    ],
)
def test_broken_tasks_are_named_and_can_be_left_out(tmp_path: Path, without: str, toml: str, reason: str) -> None:
    make_task(tmp_path, "good")
    make_task(tmp_path, "bad-one", without=without, **({"toml": toml} if toml else {}))
    with pytest.raises(UserError, match=rf"bad-one: .*{reason}") as caught:
        load_tasks(str(tmp_path))
    assert "\n" not in str(caught.value) and "leave them out: tasks_exclude=bad-one" in str(caught.value)
    assert names(load_tasks(str(tmp_path), {"bad-one"})) == ["good"]


def test_links_in_a_circle_and_files_that_harbor_does_not_read_are_named(tmp_path: Path) -> None:
    (make_task(tmp_path, "circle") / "environment/here").symlink_to(".")
    task = make_task(tmp_path, "links")
    (task / "environment/nowhere").symlink_to("/no/where")
    (task / "environment/Dockerfile").rename(task / "environment/docker-compose.yml")
    assert (find_fault(tmp_path / "circle") or "").startswith("Symlink recursion: ")
    assert (find_fault(task) or "").startswith("no environment/Dockerfile, no docker-compose.yaml")
    (task / "environment/docker-compose.yml").rename(task / "environment/Dockerfile")
    assert find_fault(task) is None
    (task / "instruction.md").write_bytes(b"F\xfcr\n")
    assert (find_fault(task) or "").startswith("task.toml or an instruction is not UTF-8: ")


def test_digest_follows_content_names_and_modes(tmp_path: Path) -> None:
    path = make_task(tmp_path, "a")
    assert digest(path) == digest(make_task(tmp_path / "copy", "a"))
    seen = {digest(path)}
    (path / "instruction.md").write_text("Do b.\n")
    seen.add(digest(path))
    (path / "tests/test.sh").chmod(0o755)
    seen.add(digest(path))
    (path / "tests/more").write_text("")
    seen.add(digest(path))
    assert len(seen) == 4
