"""Which changed paths are put back before verification: the rule, over sets of paths."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.docker import footprint as footprints
from harbortrainer.docker import system
from harbortrainer.docker.beside import is_beside
from harbortrainer.docker.layer import Change, Kind
from harbortrainer.docker.names import git_runs, loads_plugins
from harbortrainer.docker.restore import Survey, planned
from harbortrainer.docker.system import (
    Footprint,
    Place,
    VerifierFacts,
    accounts,
    is_allowed,
    is_system,
    packages,
    trusted,
)
from harbortrainer.docker.verifier_facts import verifier_facts
from tests.support.task_folder import write_task

PLACE = Place(
    path=("/usr/local/bin", "/usr/bin", "/opt/conda/bin", "/app/tools"),
    homes=("/root", "/home/dev"),
    work=("/app",),
    entrypoint=("/entry.sh",),
    tests=VerifierFacts(frozenset({"/srv/site"}), frozenset({"/app/.venv", ".env"}), frozenset({"requests"})),
)
SITE = "/usr/lib/python3/dist-packages"


class FakeLayer:
    """Contents and fingerprints by path."""

    image = None

    def __init__(self, **given: Any) -> None:
        self.contents: dict[str, bytes] = given.get("contents", {})
        self.prints: dict[str, str] = given.get("prints", {})

    def names(self, folder: str) -> list[str]:
        return [path[len(folder) + 1 :] for path in self.contents if path.startswith(f"{folder}/")]

    def content(self, path: str) -> bytes | None:
        return self.contents.get(path)

    def fingerprint(self, path: str) -> str:
        return self.prints.get(path, "file:644:1")

    def changes(self, root: str) -> Any:
        raise AssertionError(root)

    def find(self, folder: str, name: str) -> Any:
        raise AssertionError(folder, name)


def system_path(path: str, *, kind: Kind = Kind.ADDED, folder: bool = False, **contents: bytes) -> bool:
    inside = {f"{path}/{name.replace('0', '.')}": text for name, text in contents.items()}
    own = {path: contents["own"]} if "own" in contents else inside
    return counts(Change(path, kind, folder), PLACE, FakeLayer(contents=own))


def counts(change: Change, place: Place, layer: FakeLayer) -> bool:
    return is_system(change, place, layer) or is_beside(change, place, layer)


SYSTEM_PATHS = """/app/pytest_cov.py /root/.m2/settings.xml /root/.config/go/env
/usr/bin/x /bin /lib/x86_64-linux-gnu/libc.so.6 /usr/local/lib/python3.12/site-packages/a.pth
/opt/conda/lib/x.py /opt/thing/bin/run /app/tools/anything /app/.venv/lib/python3.12/site-packages/pytest/x.py
/srv/site/.env/bin/pip /etc/ld.so.preload /etc/ld.so.conf.d/a.conf /etc/profile.d/x.sh /etc/bash.bashrc
/etc/environment /etc/pip.conf /etc/python3.11/sitecustomize.py /etc/ssl/certs/ca-certificates.crt
/etc/apt/apt.conf.d/99 /etc/alternatives/awk /etc/nsswitch.conf /etc/gitconfig /etc/pam.d/su
/var/lib/dpkg/status /var/lib/apt/lists/x /root/.bashrc /home/dev/.local/bin/uv /home/dev/.cache/uv/x
/root/.config/pip/pip.conf /root/.curlrc /root/.gitconfig /root/.netrc /root/.condarc /root/.npmrc
/root/.cargo/bin/x /conftest.py /pytest.ini /app/conftest.py /app/pytest.py /app/json.py
/app/json.cpython-311-x86_64-linux-gnu.so /app/requests.py /srv/site/random.py /srv/conftest.py /app/uv.toml
/root/sitecustomize.py /app/.python-version /entry.sh /root/.jq /root/.sqliterc /root/.proverc /home/dev/.vimrc
/etc/tmux.conf /etc/sudoers.d/x /etc/ssh/ssh_config /etc/php/8.2/cli/php.ini /etc/ld-musl-x86_64.path /node_modules/x
/root/.config/tmux/tmux.conf /opt/conda/pip.conf /opt/conda/condabin/conda /root/.magic /root/.vim/plugin/x.vim"""


@pytest.mark.parametrize("path", SYSTEM_PATHS.split())
def test_what_verification_could_load_is_a_system_path(path: str) -> None:
    assert system_path(path)


WORK_PATHS = """/app/x.py /app/sub/json.py /app/solution.py /srv/data/json.py /hello.txt /tmp/x /var/www/html/index.html
/etc/nginx/nginx.conf /etc/cron.d/job /etc/hostname.txt /etc/motd /root/.ssh/known_hosts /root/.bash_history
/root/notes.txt /root/.config/app.toml /root/.cache/huggingface/x /home/new/.bashrc /usr/share/nginx/html/a
/usr/share/doc/x /usr/local/src/x.c /var/lib/postgresql/x /opt/app/main.py /srv/site/.env/notes"""


@pytest.mark.parametrize("path", WORK_PATHS.split())
def test_work_is_no_system_path(path: str) -> None:
    assert not system_path(path)


@pytest.mark.parametrize(
    ("path", "text", "hook"),
    [
        ("/app/pyproject.toml", b'[project]\nname = "x"\n', False),
        ("/app/pyproject.toml", b'["tool"."pytest".ini_options]\naddopts = "-p x"\n', True),
        ("/app/pyproject.toml", b'tool = {uv = {index-url = "x"}}\n', True),
        ("/app/pyproject.toml", b'[build-system]\nrequires = []\nbackend-path = ["."]\n', True),
        ("/app/pyproject.toml", b"no toml", True),
        ("/app/setup.cfg", b"[metadata]\nname = x\n", False),
        ("/app/setup.cfg", b"[tool:pytest]\naddopts = x\n", True),
        ("/tox.ini", b"[ pytest ]\n", True),
        ("/app/sub/pyproject.toml", b"[tool.pytest]\n", False),
    ],
)
def test_settings_beside_the_work_count_where_they_steer_the_runner(path: str, text: bytes, hook: bool) -> None:
    assert system_path(path, own=text) is hook


@pytest.mark.parametrize(
    ("path", "text", "hook"),
    [
        ("/root/.ssh/config", b"Host x\n  User y\n  IdentityFile ~/.ssh/k\n", False),
        ("/root/.ssh/config", b"Host *\n  ProxyCommand /x\n", True),
        ("/root/.ssh/config", b"Match exec /x\n", True),
        ("/home/dev/.ssh/rc", b"", True),
        ("/root/.gnupg/gpg.conf", b"pinentry-mode loopback\n", False),
        ("/root/.gnupg/gpg.conf", b"photo-viewer /x\n", True),
    ],
)
def test_settings_of_a_home_count_where_they_run_a_program(path: str, text: bytes, hook: bool) -> None:
    assert system_path(path, own=text) is hook


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("[core]\n\tbare = false\n\tignorecase = true\n[user]\n\temail = a@b\n", False),
        ('[remote "origin"]\n\turl = https://x/y\n[branch "editor"]\n\tmerge = refs/heads/editor\n', False),
        ("[core]\n\teditor = vim\n\tpager = less -R\n\tfsmonitor = false\n[pull]\n\trebase = true\n", False),
        ("[core] fsmonitor = /x\n", True),
        ("[core]fsmonitor=/x\n", True),
        ("[CORE]\n\tHooksPath = /x\n", True),
        ('[core]\n\tpager = "less; /x"\n', True),
        ("[core]\n\tpager = less ; a comment\n", False),
        ('[filter "x"]\n\tclean = /x\n', True),
        ('[diff "x"]\n\ttextconv = /x\n', True),
        ("[include]\n\tpath = /x\n", True),
        ('[includeIf "gitdir:/"]\n\tpath = /x\n', True),
        ("[core]\n\tfsmonitor = \\\n/x\n", True),
    ],
)
def test_settings_of_a_repository_count_where_they_run_a_program(text: str, runs: bool) -> None:
    assert git_runs(text.encode()) is runs


def test_what_programs_read_beside_the_work_counts_where_the_tests_run_them(tmp_path: Path) -> None:
    test = "npx jest\nmake check\ncargo test\nR -f x\nsu judge -c id\nPATH=$HOME/x/bin:/app/tools:$PATH\n"
    task = write_task(tmp_path / "task", test=test, toml='[verifier]\nuser = "grader"\n')
    facts = verifier_facts(task)
    assert facts.runs_make and facts.runs_js and not facts.runs_git and facts.users == {"judge", "grader"}
    assert facts.path == {"~/x/bin", "/app/tools"}
    place = Place(work=("/app",), homes=("/root",), libraries=("/app/so",), services=True, tests=facts)
    quiet = Place(work=("/app",), homes=("/root",))
    read = """/app/jest.config.js /app/.npmrc /app/GNUmakefile /app/.cargo /app/rust-toolchain /app/.Rprofile
    /app/node_modules/.bin/jest /app/node_modules/jest/x.js /app/tools/python3 /root/x/bin/pytest /app/so/libc.so.6
    /etc/cron.d/job /var/spool/cron/crontabs/root"""
    for path in read.split():
        change, layer = Change(path, Kind.ADDED), FakeLayer(contents={path: b""})
        assert counts(change, place, layer) and not counts(change, quiet, layer), path
    for path in ("/app/node_modules/left-pad/x.js", "/app/tools/mine", "/app/so/notes", "/app/Makefile"):
        assert not counts(Change(path, Kind.ADDED), place, FakeLayer(contents={path: b""})), path


def test_a_store_of_modules_keeps_the_images_files_and_may_grow() -> None:
    for path in ("/root/go/pkg/mod/x/x.go", "/go/pkg/mod/x/x.go", "/root/.m2/repository/x.jar"):
        assert system_path(path, kind=Kind.CHANGED) and not system_path(path)


def test_a_project_file_counts_where_the_tests_run_uv() -> None:
    for name in ("pyproject.toml", "uv.lock"):
        change, layer = Change(f"/app/{name}", Kind.ADDED), FakeLayer(contents={f"/app/{name}": b""})
        uv = Place(work=("/app",), tests=VerifierFacts(runs_uv=True))
        assert counts(change, uv, layer) and not counts(change, PLACE, layer)


def test_a_folder_shadows_a_module_only_as_a_package() -> None:
    assert system_path("/app/json", folder=True, __init__0py=b"") and not system_path(
        "/app/json", folder=True, x0py=b""
    )
    assert system_path("/app/pytest", folder=True, x0py=b"") and not system_path("/app/code.d", folder=True)
    assert not system_path("/app/json.py", kind=Kind.CHANGED)  # the image has one of that name


FOOTPRINT = Footprint(
    {
        "/usr/bin/tool": "file:755:1",
        "/usr/bin/git": "elf:755:1",
        "/usr/bin/uv": "elf:755:1",
        "/usr/lib/x86_64-linux-gnu/libtool.so.1.2": "elf:644:1",
        f"{SITE}/pack": "folder",
        f"{SITE}/pack/__init__.py": "file:644:1",
        f"{SITE}/pack-1.0.dist-info": "folder",
        f"{SITE}/a.pth": "file:644:1",
        "/usr/local/lib/python3.11/dist-packages": "folder",
        "/root/.bashrc": "file:644:1",
        "/usr/lib/python3.11/sitecustomize.py": "file:644:1",
        "/etc/ld.so.preload": "file:644:1",
        "/conftest.py": "file:644:1",
    },
    frozenset({f"{SITE}/pack", f"{SITE}/pack-1.0.dist-info", "/usr/local/lib/python3.11/dist-packages"}),
)


@pytest.mark.parametrize(
    ("path", "now", "allowed"),
    [
        ("/usr/bin/tool", "file:755:2", True),
        ("/usr/bin/other", "file:755:1", False),
        ("/usr/lib/x86_64-linux-gnu/libtool.so.1.3", "elf:644:2", True),  # another version
        (f"{SITE}/pack/more/x.py", "file:644:2", True),
        (f"{SITE}/pack-1.1.dist-info/METADATA", "file:644:2", True),
        (f"{SITE}/pack/a.pth", "file:644:1", False),
        (f"{SITE}/pack-1.0.dist-info/entry_points.txt", "file:644:1", False),
        ("/usr/local/lib/python3.11/dist-packages/other/x.py", "file:644:1", False),  # the folder is no package
        ("/usr/local/lib/python3.11/dist-packages/pytest/x.py", "file:644:1", False),
        (f"{SITE}/a.pth", "file:644:1", True),
        (f"{SITE}/a.pth", "file:644:2", False),
        ("/usr/bin/git", "elf:755:2", True),  # another version
        ("/usr/bin/git", "file:755:2", False),
        ("/usr/local/bin/git", "elf:755:1", False),
        ("/usr/bin/uv", "elf:755:1", True),
        ("/usr/bin/uv", "elf:755:2", False),
        ("/root/.bashrc", "file:644:2", True),
        ("/root/.profile", "file:644:1", False),
        ("/usr/lib/python3.11/sitecustomize.py", "file:644:1", False),
        ("/etc/ld.so.preload", "file:644:1", False),
        ("/conftest.py", "file:644:1", False),
    ],
)
def test_a_footprint_allows_what_the_solution_changes_and_no_hooks(path: str, now: str, allowed: bool) -> None:
    change = Change(path, Kind.ADDED)
    assert is_allowed(change, FOOTPRINT, lambda _: now, PLACE) is allowed
    assert not is_allowed(change, Footprint(), lambda _: now, PLACE)


def test_a_script_in_place_of_a_verifiers_program_is_no_footprint() -> None:
    prints = {"/usr/bin/curl": "file:755:1", "/usr/bin/git": "elf:755:1", "/usr/local/bin/pytest": "file:755:1"}
    assert trusted(prints, frozenset({"pytest"})) == {name: prints[name] for name in list(prints)[1:]}
    assert trusted({"/usr/bin/mine": "file:755:1"}, frozenset()) == {"/usr/bin/mine": "file:755:1"}


PASSWD = "root:x:0:0:root:/root:/bin/bash\ndev:x:1000:1000::/home/dev:/bin/sh\n"


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        (PASSWD, None),
        (f"{PASSWD}new:x:1001:1001::/home/new:/bin/sh\n", None),
        (PASSWD.replace(":/home/dev:", ":/srv:"), None),  # no user of the verifier
        (PASSWD.replace(":/root:", ":/h:"), PASSWD),
        (f"root:x:0:0::/h:/bin/sh\n{PASSWD}", PASSWD),
        (f"toor:x:0:0::/h:/bin/sh\n{PASSWD}", PASSWD.replace("dev:x", "toor:x:0:0::/h:/bin/sh\ndev:x")),
        ("", PASSWD.splitlines(keepends=True)[0]),
    ],
)
def test_accounts_of_the_verifier_are_the_images(now: str, wanted: str | None) -> None:
    assert accounts(PASSWD, now, ["root"]) == wanted


def test_packages_of_the_solution_stay_installed_and_others_do_not() -> None:
    def status(*names: str) -> str:
        return "".join(f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\n\n" for name in names)

    own = Footprint({f"/var/lib/dpkg/info/{name}": "file:644:1" for name in ("jq.list", "libjq1:amd64.md5sums")})
    got = packages(status("base"), status("base", "jq", "libjq2", "curl"), own)
    assert system.paragraphs(got) == system.paragraphs(status("base", "jq", "libjq2"))
    assert packages(status("base", "jq"), status("base"), own) == status("base")  # the solution may remove it


@pytest.mark.parametrize(
    ("cache", "misled"),
    [
        (b"libc.so.6\0/lib/x86_64-linux-gnu/libc.so.6\0libm.so.1\0/usr/local/lib/libm.so.1\0", False),
        (b"libc.so.6\0/home/agent/libc.so.6\0", True),
        (None, True),
    ],
)
def test_a_loaders_cache_may_grow_but_not_mislead(cache: bytes | None, misled: bool) -> None:
    assert system.misleads(cache, Footprint()) is misled
    assert not system.misleads(b"x\0/opt/x/lib/libx.so.1\0", Footprint({"/opt/x/lib/libx.so.1": "elf:644:1"}))


class FakeImage:
    def text(self, path: str) -> str | None:
        return PASSWD if path == "/etc/passwd" else None


def test_a_plan_removes_whole_folders_and_keeps_what_is_allowed() -> None:
    changes = (
        Change("/etc/ld.so.cache", Kind.CHANGED),
        Change("/etc/passwd", Kind.CHANGED),
        Change("/usr/bin/cat", Kind.CHANGED),
        Change("/usr/bin/tac", Kind.REMOVED),
        Change("/usr/lib/evil", Kind.ADDED, folder=True),
        Change("/usr/lib/evil/x", Kind.ADDED),
        Change("/usr/lib/mixed", Kind.ADDED, folder=True),
        Change("/usr/lib/mixed/bad", Kind.ADDED),
        Change("/usr/lib/mixed/good", Kind.ADDED),
        Change("/usr/lib/p/__pycache__/x.pyc", Kind.ADDED),
    )
    contents = {"/etc/ld.so.cache": b"/usr/lib/x.so", "/etc/passwd": PASSWD.replace(":/root:", ":/h:").encode()}
    found = Survey(FakeLayer(contents=contents), PLACE, changes)
    source: Any = FakeImage()
    plan = planned(found, Footprint({"/usr/lib/mixed/good": "file:644:9"}), source, ["root"])
    assert [one.path for one in plan.copies] == ["/usr/bin/cat", "/usr/bin/tac"]
    assert plan.removed == ["/usr/lib/evil", "/usr/lib/mixed/bad", "/usr/lib/p/__pycache__/x.pyc"]
    assert plan.texts == {"/etc/passwd": PASSWD}
    assert plan.paths == ["/etc/passwd", "/usr/bin/cat", "/usr/bin/tac", "/usr/lib/evil", "/usr/lib/mixed/bad"]


def test_caches_and_accounts_alone_need_no_footprint() -> None:
    quiet = [Change("/usr/lib/p/__pycache__/x.pyc", Kind.ADDED), Change("/etc/passwd", Kind.CHANGED)]
    assert not Survey(FakeLayer(), PLACE, tuple(quiet)).needs_footprint
    assert Survey(FakeLayer(), PLACE, (*quiet, Change("/usr/bin/x", Kind.ADDED))).needs_footprint


def test_a_tasks_tests_tell_where_they_work(tmp_path: Path) -> None:
    test = "cd /srv/site && /opt/v/bin/python -m pytest\nsource .venv/bin/activate; pip install psutil==1\nuv run x\n"
    task = write_task(tmp_path / "task", test=f"{test}/usr/bin/python3 x; $HOME/.local/bin/uv\n/app/bin/server &\n")
    (task / "tests" / "test_it.py").write_text("import os, json\nimport psutil\nfrom solution import f\n")
    facts = verifier_facts(task)
    assert facts.folders == {"/srv/site"} and facts.prefixes == {"/opt/v", ".venv"}
    assert facts.imports == {"psutil"} and facts.runs_uv


def test_variables_of_the_tests_are_written_out(tmp_path: Path) -> None:
    shell = 'export REPO=/srv/repo VENV="/srv/env"\ncd "$REPO" && ${VENV}/bin/pip list\ncd sub\ngit -C /srv/other log\n'
    task = write_task(tmp_path / "task", test=f"{shell}PYTHONPATH=/srv/lib:$PYTHONPATH python3 x\ncd /tests\n")
    code = 'import sys, flask, work\nROOT = Path("/srv/root")\nsys.path.insert(0, str(ROOT))\nrun(x, cwd="/srv/cwd")\n'
    (task / "tests" / "test_it.py").write_text(code)
    facts = verifier_facts(task)
    assert facts.folders == {"/srv/repo", "sub", "/srv/other", "/srv/lib", "/srv/root", "/srv/cwd"}
    assert facts.prefixes == {"/srv/env"} and facts.imports == {"flask"} and facts.runs_git
    assert "/app/sub" in Place(work=("/app",), tests=facts).beside


def test_records_of_packages_count_where_they_load_plugins() -> None:
    assert not loads_plugins(b"[console_scripts]\nx = y:z\n")
    for text in (b"[pytest11]\nx = y\n", b"[console_scripts]\nx = y:z\n[[pytest11]]\nx = y\n"):
        assert loads_plugins(text)


async def test_a_footprint_is_learned_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs: list[int] = []

    async def learn() -> Footprint:
        runs.append(1)
        await asyncio.sleep(0)
        return FOOTPRINT

    async def later(turns: int) -> Footprint | None:
        for _turn in range(turns):  # of the event loop
            await asyncio.sleep(0)
        return await footprints.learned("k1", "task", learn)

    got = await asyncio.gather(*map(later, range(40)))  # some ask while it is stored
    assert got == [FOOTPRINT] * 40 and len(runs) == 1
    assert await footprints.learned("k1", "task", learn) == FOOTPRINT == footprints.stored("k1") and len(runs) == 1
    (tmp_path / "harbortrainer/footprints/k1.json").write_text("{")
    assert footprints.stored("k1") is None


async def test_a_solution_that_cannot_run_gives_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def learn() -> Footprint:
        raise TimeoutError

    for _ in range(2):
        assert await footprints.learned("k2", "late", learn) is None
    assert [record.message[:40] for record in caplog.records] == ["task late: its solution could not run to"]


def test_a_recorded_footprint_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    footprints.adopt(tmp_path / "missing.json")
    (tmp_path / "footprint.json").write_text(footprints.dump(FOOTPRINT, "k3"))
    footprints.adopt(tmp_path / "footprint.json")
    assert footprints.stored("k3") == FOOTPRINT
