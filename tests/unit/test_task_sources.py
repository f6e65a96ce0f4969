"""Sources of tasks: several folders, git, a registry; globs, names, weights; what was fetched stays what it was."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harbor.registry.client import package

from harbortrainer.cli.main import main
from harbortrainer.durable.files import cache_folder
from harbortrainer.errors import UserError
from harbortrainer.tasks import fetch
from harbortrainer.tasks.fetch import DIGESTS, fetch_dataset
from harbortrainer.tasks.sources import check_weights, find_sources, load_sources
from harbortrainer.tasks.task import Task
from tests.support.task_folder import write_task


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def names(tasks: list[Task]) -> list[str]:
    return [task.name for task in tasks]


def folders(tmp_path: Path) -> str:
    for name in ("one/a", "one/b-1", "two/a", "two/c"):
        category = '[metadata]\ncategory = "git"\n' if name == "two/c" else ""
        write_task(tmp_path / name, toml=category, head='schema_version = "1.4"\n')
    return f"{tmp_path}/one,{tmp_path}/two"


def test_several_folders(tmp_path: Path) -> None:
    sources = find_sources(folders(tmp_path))
    tasks = load_sources(sources)
    assert [source.name for source in sources] == ["one", "two"]
    assert names(tasks) == ["one/a", "b-1", "two/a", "c"]
    assert [(task.source, task.domain) for task in tasks[1:]] == [("one", "one"), ("two", "two"), ("two", "git")]


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        (("b-*",), (), ["b-1"]),
        (("one/*",), (), ["a", "b-1"]),
        ((), ("two/*", "b-1"), ["a"]),
        (("a",), ("one/a",), ["a"]),
    ],
)
def test_globs(tmp_path: Path, include: tuple[str, ...], exclude: tuple[str, ...], left: list[str]) -> None:
    assert names(load_sources(find_sources(folders(tmp_path)), include, exclude)) == left


def test_globs_that_do_nothing_or_leave_nothing_are_refused(tmp_path: Path) -> None:
    sources = find_sources(folders(tmp_path))
    with pytest.raises(UserError, match="tasks_include=x: matches none of 4 tasks"):
        load_sources(sources, ("x",))
    with pytest.raises(UserError, match=r"tasks_exclude=\*: leaves no task"):
        load_sources(sources, (), ("*",))


def test_names_of_folders_with_the_same_last_part(tmp_path: Path) -> None:
    for name in ("x/set/a", "y/set/a"):
        write_task(tmp_path / name)
    assert [s.name for s in find_sources(f"{tmp_path}/x/set, {tmp_path}/y/set")] == ["x/set", "y/set"]
    with pytest.raises(UserError, match="named twice"):
        find_sources(f"{tmp_path}/x/set,{tmp_path}/x/set")
    with pytest.raises(UserError, match="nowhere is not a folder"):
        load_sources(find_sources("nowhere"))


def test_weights_name_sources(tmp_path: Path) -> None:
    sources = find_sources(folders(tmp_path))
    assert check_weights({"one": 2}, sources) == {"one": 2.0}
    with pytest.raises(UserError, match=r"task_weights\.three: no such source; one of one, two"):
        check_weights({"three": 2}, sources)
    with pytest.raises(UserError, match=r"task_weights\.one=0: must be a number above 0"):
        check_weights({"one": 0}, sources)
    with pytest.raises(UserError, match=r"task_weights\.one=1000000000\.0: must be a number above 0, 1000 at most"):
        check_weights({"one": 1e9}, sources)  # its epoch took all memory


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path) -> tuple[str, str]:
    """Its address, and the commit of two tasks below `sets/small`."""
    for name in ("a", "b"):
        write_task(folder / "sets" / "small" / name)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "tasks")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(folder, "config", "uploadpack.allowFilter", "true")
    return f"file://{folder}", git(folder, "rev-parse", "HEAD")


def test_git(tmp_path: Path) -> None:
    address, commit = repository(tmp_path / "repository")
    for revision in ("", "@main", f"@{commit}"):
        (source,) = find_sources(f"git+{address}{revision}#sets/small")
        assert (source.name, source.version) == ("small", commit)
        assert names(load_sources([source])) == ["a", "b"]
    git(tmp_path / "repository", "branch", "feature/x")
    assert find_sources(f"git+{address}@feature/x#sets/small")[0].version == commit
    (tmp_path / "repository").rename(tmp_path / "of@team")
    for where in (f"file://{tmp_path}/of@team", f"{tmp_path}/of@team"):
        for revision in ("", "@feature/x"):
            assert find_sources(f"git+{where}{revision}#sets/small")[0].version == commit
    (tmp_path / "of@team").rename(tmp_path / "repository")
    with pytest.raises(UserError, match="no folder gone at commit"):
        find_sources(f"git+{address}#gone")
    with pytest.raises(UserError, match=r"git\+file:///nowhere: .*needs the internet, or give a folder"):
        find_sources("git+file:///nowhere")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("https://h/r@feature/x", ("https://h/r", "feature/x")),
        ("git@h:r.git@feature/x", ("git@h:r.git", "feature/x")),
        ("https://h/@team/r@v1", ("https://h/@team/r", "v1")),
    ],
)
def test_a_revision_is_behind_the_path(address: str, parts: tuple[str, str]) -> None:
    assert fetch._split(address) == parts


def registry(tmp_path: Path, *names: str) -> Path:
    """A registry of datasets with both tasks of a repository."""
    address, commit = repository(tmp_path / "repository")
    tasks = [
        {"name": name, "git_url": address, "git_commit_id": commit, "path": f"sets/small/{name}"} for name in ("a", "b")
    ]
    file = tmp_path / "registry.json"
    sets = [{"name": name, "version": "1.0", "description": "x", "tasks": tasks} for name in names or ("tiny",)]
    file.write_text(json.dumps(sets))
    return file


def test_a_registrys_dataset_is_fetched_once_and_stays_as_it_was(tmp_path: Path) -> None:
    folder = cache_folder("sources") / "registry"
    folder.mkdir(parents=True)
    fetch_dataset("tiny@1.0", str(registry(tmp_path)), folder / "tiny@1.0")
    (source,) = find_sources("tiny@1.0")
    assert source.version == "tiny@1.0" and names(load_sources([source])) == ["a", "b"]
    (Path(source.path) / "a" / "instruction.md").write_text("other")
    with pytest.raises(UserError, match="not as it was fetched: a; remove it and fetch it again"):
        find_sources("tiny@1.0")


def test_a_dataset_of_an_organisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name goes before it."""
    folder = cache_folder("sources") / "registry" / "org"
    folder.mkdir(parents=True)
    fetch_dataset("org/tiny-2.1@1.0", str(registry(tmp_path, "org/tiny-2.1")), folder / "tiny-2.1@1.0")
    monkeypatch.chdir(tmp_path)
    (source,) = find_sources("org/tiny-2.1@1.0")
    assert (source.name, source.version) == ("tiny-2.1@1.0", "org/tiny-2.1@1.0")
    assert names(load_sources([source])) == ["a", "b"]
    write_task(tmp_path / "org" / "tiny-2.1@1.0" / "mine")
    assert names(load_sources(find_sources("org/tiny-2.1@1.0"))) == ["mine"]
    for given in ("./org/other@1.0", "a/b/other@1.0", "/org/other@1.0", "org/other", "org/@1.0"):
        with pytest.raises(UserError, match="is not a folder"):
            load_sources(find_sources(given))


def test_several_faults_of_a_download_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_args: Any, **_kwargs: Any) -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("one", [OSError("the disk is full")]), ValueError("x")])

    monkeypatch.setattr(package.PackageDatasetClient, "download_dataset", fail)
    with pytest.raises(UserError, match=r"^org/tiny@1: cannot be fetched \(OSError: the disk is full\)[^\n]*$"):
        fetch_dataset("org/tiny@1", None, tmp_path / "tiny")


def test_get_writes_a_folder_with_digests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "datasets" / "tiny"
    arguments = ["get", "tiny@1.0", f"to={folder}", f"registry={registry(tmp_path)}"]
    assert main(["tasks", *arguments]) == 0
    assert "tiny@1.0, 2 tasks" in capsys.readouterr().out
    assert len((folder / DIGESTS).read_text().splitlines()) == 3
    assert main(["tasks", *arguments]) == 0 and "exists already" in capsys.readouterr().out
    (folder / "b" / "task.toml").write_text("")
    assert main(["tasks", *arguments]) == 2 and "not as it was fetched: b" in capsys.readouterr().err


def test_what_cannot_be_had_is_one_line_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = registry(tmp_path)
    for given, told in (("other@1.0", "other not found"), ("tiny@2.0", "Version 2.0")):
        assert main(["tasks", "get", given, f"to={tmp_path / 'x'}", f"registry={file}"]) == 2
        said = capsys.readouterr().err
        assert told in said and len(said.splitlines()) == 1
    assert main(["tasks", "get", "tiny@1.0", f"to={tmp_path / 'x'}", "registry=http://127.0.0.1:9/r.json"]) == 2
    said = capsys.readouterr().err
    assert "tiny@1.0: cannot be fetched" in said and "needs the internet" in said and len(said.splitlines()) == 1
    assert not (tmp_path / "x").exists() and not list(tmp_path.glob(".x*"))


def commit_change(folder: Path, text: str) -> str:
    (folder / "sets" / "small" / "a" / "instruction.md").write_text(text)
    git(folder, "commit", "--quiet", "-am", text)
    return git(folder, "rev-parse", "HEAD")


def test_a_fetched_commit_stays_as_it_is_and_is_used_offline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address, commit = repository(tmp_path / "repository")
    (first,) = find_sources(f"git+{address}#sets/small")
    instruction = Path(first.path) / "a" / "instruction.md"
    before = instruction.read_text()
    later = commit_change(tmp_path / "repository", "another text")
    (second,) = find_sources(f"git+{address}#sets/small")
    assert (first.version, second.version) == (commit, later)
    assert instruction.read_text() == before, "a run that uses the first commit keeps it"
    (tmp_path / "repository").rename(tmp_path / "away")
    assert find_sources(f"git+{address}#sets/small") == [second] and instruction.read_text() == before
    assert f"the copy in the cache is used, of commit {later[:12]}" in caplog.text
    with pytest.raises(UserError, match="needs the internet"):
        find_sources(f"git+{address}@other#sets/small")
    assert find_sources(f"git+{address}@{commit}#sets/small")[0].path == first.path, "a commit that is there"


def test_an_annotated_tag_and_files_that_were_removed(tmp_path: Path) -> None:
    address, commit = repository(tmp_path / "repository")
    git(tmp_path / "repository", "tag", "-a", "v1", "-m", "first")
    shutil.rmtree(tmp_path / "repository" / "sets" / "small" / "b")
    commit_change(tmp_path / "repository", "without b")
    (new,) = find_sources(f"git+{address}#sets/small")
    (tagged,) = find_sources(f"git+{address}@v1#sets/small")
    assert tagged.version == commit and names(load_sources([tagged])) == ["a", "b"]
    assert names(load_sources([new])) == ["a"]


def test_two_fetches_of_one_repository_at_once(tmp_path: Path) -> None:
    address, _ = repository(tmp_path / "repository")
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(find_sources, [f"git+{address}#sets/small"] * 3)]
    assert found[0] == found[1] == found[2] and names(load_sources(found[0])) == ["a", "b"]


def test_a_dataset_that_another_process_has_fetched_meanwhile_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    assert fetch_dataset("tiny@1.0", str(registry(tmp_path)), folder) == "tiny@1.0, 2 tasks"
    shutil.copytree(folder, tmp_path / "partial")
    fetch._put(tmp_path / "partial", folder)
    assert names(load_sources(find_sources(str(folder)))) == ["a", "b"]
