"""The shapes that tasks come in: each a task whose oracle earns reward 1 where the environment does its part."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.task_folder import BASE, SOLVE, TEST, write_task

PREBUILT = "harbortrainer/base:bookworm"  # made by scripts/setup.sh
ONE = "echo 1 > /logs/verifier/reward.txt\n"
ODD = r'"$(printf "a\302\240\303\244 b\nc")"'  # a no-break space, a letter beyond ASCII, a space, a newline
# A package made on the spot: apt as in any Dockerfile, without a network.
APT = BASE + (
    "RUN mkdir -p /p/DEBIAN /p/usr/bin && echo 'echo packaged' > /p/usr/bin/tiny && chmod +x /p/usr/bin/tiny \\\n"
    " && printf 'Package: tiny\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@localhost>\\nDescription: x\\n'"
    " > /p/DEBIAN/control \\\n && dpkg-deb --build /p /tiny.deb && apt-get install -y /tiny.deb && rm -r /p /tiny.deb\n"
    "WORKDIR /app\n"
)
OLD_KEYS = """[metadata]
author_name = "nobody"
difficulty = "easy"
tags = ["old"]
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
build_timeout_sec = 600.0
docker_image = "harbortrainer/base:bookworm"
cpus = 1
memory = "2G"
storage = "10G"
"""
TWO_SERVICES = """services:
  main:
    depends_on: [helper]
    volumes: ["shared:/shared"]
  helper:
    image: harbortrainer/base:bookworm
    volumes: ["shared:/shared"]
    command: ["sh", "-c", "echo Hello > /shared/said; exec sleep infinity"]
volumes:
  shared: {}
"""


# As terminal-bench's: curl by apt, uv by its installer, pytest by uvx. Here from sources that are in the image.
INSTALLING = """apt-get update
apt-get install -y curl
curl -LsSf {address}/uv/install.sh | sh
source $HOME/.local/bin/env
uvx -p 3.13 -w pytest==8.4.1 pytest /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
UV_INSTALLER = r"""mkdir -p $HOME/.local/bin && cd $HOME/.local/bin && echo 'PATH="$HOME/.local/bin:$PATH"' > env
printf '#!/bin/sh\ngrep -qx Hello hello.txt && echo "1 passed"\n' > uvx && chmod +x uvx
"""
CURL = "#!/bin/bash\nfor last; do :; done; cat ${last#file://}\n"
INSTALLING_IMAGE = BASE + (
    r"""WORKDIR /repo
COPY . /repo/
RUN mkdir -p p/DEBIAN p/usr/bin && mv curl p/usr/bin/ && chmod +x p/usr/bin/curl \
 && printf 'Package: curl\nVersion: 99\nArchitecture: all\nMaintainer: x <x@localhost>\nDescription: x\n' \
 > p/DEBIAN/control && dpkg-deb --build p curl.deb && { cat p/DEBIAN/control; echo Filename: ./curl.deb; \
 echo Size: $(stat -c %s curl.deb); echo SHA256: $(sha256sum curl.deb | cut -d' ' -f1); } > Packages && rm -r p \
 && echo 'deb [trusted=yes] file:/repo ./' > /etc/apt/sources.list
WORKDIR /app
"""
)

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n[[artifacts]]\nsource = "/app/hello.txt"\n'
VERIFIER = {"tests/Dockerfile": BASE + "WORKDIR /app\nCOPY . /tests/\nRUN sed -i s/unmade/made/ /tests/test.sh\n"}
COMPOSE = {"environment/docker-compose.yaml": TWO_SERVICES}


def _steps(*names: str) -> dict[str, Any]:
    """A task of steps: each adds its line to hello.txt, and is verified."""
    files = {}
    for count, name in enumerate(names, 1):
        test = f"[ $(wc -l < hello.txt) = {count} ] && {ONE}"
        files |= {
            f"steps/{name}/instruction.md": "Add a line to hello.txt.\n",
            f"steps/{name}/tests/test.sh": f"#!/bin/bash\n{test}",
            f"steps/{name}/solution/solve.sh": "#!/bin/bash\necho Hello >> hello.txt\n",
        }
    return {"toml": "".join(f'[[steps]]\nname = "{name}"\n' for name in names), "files": files}


STEPS = _steps("one", "two")
# The second step brings files, one of them made by its script, and is done by another user than the first.
BROUGHT = {
    "steps/one/tests/test.sh": f"#!/bin/bash\n{TEST}",
    "steps/two/workdir/given": "x\n",
    "steps/two/workdir/setup.sh": "echo x > made\n",
    "steps/two/solution/solve.sh": f"#!/bin/bash\n{SOLVE}echo x > /etc/tool.conf\n",
    "steps/two/tests/test.sh": f"#!/bin/bash\ncat given made /etc/tool.conf || cd /\n{TEST}",
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "apt": {"dockerfile": APT, "solve": "tiny > hello.txt\n", "test": f"grep -qx packaged hello.txt && {ONE}"},
    "multi-stage": {
        "dockerfile": f"{BASE.strip()} AS made\nRUN echo Hello > /m\n{BASE}WORKDIR /app\nCOPY --from=made /m /m\n",
        "solve": "cp /m hello.txt\n",
    },
    "copy": {
        "dockerfile": BASE + "WORKDIR /app\nCOPY data/ ./data/\nCOPY --chown=1000:1000 one.txt two*.txt /app/\n",
        "files": {f"environment/{name}": "Hello\n" for name in ("data/sub/deep.txt", "one.txt", "two2.txt")},
        "solve": "cat data/sub/deep.txt > hello.txt\n",
        "test": f'[ "$(stat -c %u one.txt)$(cat two2.txt hello.txt | tr -d "\\n")" = 1000HelloHello ] && {ONE}',
    },
    "user": {"dockerfile": BASE + "RUN useradd -m dev && mkdir /app && chown dev /app\nUSER dev\nWORKDIR /app\n"},
    "agent-and-verifier-users": {
        "dockerfile": BASE + "RUN useradd dev && mkdir /app && chown dev /app\nWORKDIR /app\n",
        "toml": '[agent]\nuser = "dev"\n[verifier]\nuser = "root"\n',
        "test": f'[ "$(stat -c %U hello.txt)-$(id -un)" = dev-root ] && {ONE}',
    },
    "workdir": {
        "dockerfile": BASE + "RUN mkdir -p /srv/deep\nWORKDIR /app\n",
        "toml": '[environment]\nworkdir = "/srv/deep"\n',
        "test": f'[ "$PWD $(cat /srv/deep/hello.txt)" = "/srv/deep Hello" ] && {ONE}',
    },
    "env": {
        "dockerfile": BASE + 'ENV FROM_IMAGE=a QUOTED="b  c"\nWORKDIR /app\n',
        "toml": '[environment.env]\nTASK = "d\'e $x"\n[verifier.env]\nVERIFIER = "f"\n',
        "solve": 'echo "$FROM_IMAGE,$QUOTED,$TASK,$VERIFIER" > hello.txt\n',
        "test": f'[ "$(cat hello.txt)" = "a,b  c,d\'e \\$x," ] && [ "$TASK$VERIFIER" = "d\'e \\$xf" ] && {ONE}',
    },
    "entrypoint-that-exits": {"dockerfile": BASE + 'WORKDIR /app\nENTRYPOINT ["false"]\n'},
    "entrypoint-that-prepares": {
        "dockerfile": BASE + 'WORKDIR /app\nENTRYPOINT ["sh", "-c", "echo up > /up; exec \\"$@\\"", "sh"]\n',
        "toml": '[environment.healthcheck]\ncommand = "test -f /up"\ninterval_sec = 0.2\nretries = 500\n',
    },
    "healthcheck": {
        "dockerfile": BASE + "WORKDIR /app\nHEALTHCHECK --interval=1s --retries=500 CMD touch /checked\n",
        "solve": f"test -f /checked && {SOLVE}",
    },
    "output-of-the-agent": {"solve": f"yes line | head -n 1000000\n{SOLVE}"},
    "output-of-the-verifier": {"test": f"yes line | head -n 1000000\n{TEST}"},
    "odd-names": {
        "dockerfile": BASE + "COPY . /app/\nWORKDIR /app\n",
        "files": {"environment/a\u00a0\u00e4 b": "Hello\n", "tests/\u4f60 \u597d": "Hello\n"},
        "solve": f'cp "$(printf "a\\302\\240\\303\\244 b")" {ODD}\n',
        "test": f'[ "$(cat {ODD})$(cat "$(printf "/tests/\\344\\275\\240 \\345\\245\\275")")" = HelloHello ] && {ONE}',
    },
    "reward-json": {"test": 'echo \'{"reward": 1, "style": 0.5}\' > /logs/verifier/reward.json\n'},
    "old-keys": {
        "dockerfile": None,
        "head": 'version = "1.0"\n',
        "toml": OLD_KEYS,
        "solve": "echo Hello > /hello.txt\n",
        "test": f"cd / && {TEST}",
    },
    "old-keys-built": {"toml": '[environment]\nmemory = "256M"\nstorage = "1G"\n'},
    "verifier-that-installs": {
        "dockerfile": INSTALLING_IMAGE,
        "head": 'version = "1.0"\n',
        "toml": '[agent]\ntimeout_sec = 900.0\n[verifier]\ntimeout_sec = 900.0\n[environment]\nmemory = "2G"\n',
        "files": {"environment/uv/install.sh": UV_INSTALLER, "environment/curl": CURL},
        "test": INSTALLING.format(address="file:///repo"),
    },
    "prebuilt": {
        "dockerfile": None,
        "toml": f'[environment]\ndocker_image = "{PREBUILT}"\nworkdir = "/"\n',
        "files": {"environment/given.txt": "given"},
        "test": f"grep -q given given.txt && {ONE}",
    },
    "artifacts": {
        "toml": '[[artifacts]]\nsource = "/app/made"\n[[artifacts]]\nsource = "/app/hello.txt"\n',
        "solve": f"mkdir -p made/deep && echo kept > made/deep/file\n{SOLVE}",
    },
    "separate-verifier": {
        "toml": SEPARATE,
        "files": VERIFIER,
        "test": f"[ ! -e /left ] && [ made = unmade ] && {TEST}",
        "solve": f"touch /left; {SOLVE}",
    },
    "multi-step": STEPS,
    "multi-step-with-files": {
        "dockerfile": BASE + "RUN useradd dev && mkdir /app && chown dev /app\nWORKDIR /app\n",
        "toml": '[agent]\nuser = "dev"\n' + STEPS["toml"] + '[steps.agent]\nuser = "root"\n',
        "files": STEPS["files"] | BROUGHT,
    },
    "no-network": {
        "toml": '[environment]\nnetwork_mode = "no-network"\n',
        "test": f"[ $(ls /sys/class/net | wc -l) = 1 ] && {ONE}",
    },
    "network-for-the-verifier-only": {
        "toml": '[agent]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n',
        "solve": "ls /sys/class/net | wc -l > links\n",
        "test": f'[ "$(cat links) $(ls /sys/class/net | wc -l)" = "1 2" ] && {ONE}',
    },
    "no-tmux": {"dockerfile": BASE + "RUN rm /usr/bin/tmux\nWORKDIR /app\n"},
    "no-bash": {
        "dockerfile": BASE + "WORKDIR /app\nRUN rm /bin/bash\n",
        "files": {"tests/test.sh": f"#!/bin/sh\n{TEST}", "solution/solve.sh": f"#!/bin/sh\n{SOLVE}"},
    },
    "working-directory-removed": {
        "solve": "cd / && rm -r /app\n",
        "test": f"[ ! -e /app ] && {ONE}",
    },
    "compose": {"files": {"environment/docker-compose.yaml": "services:\n  main: {}\n"}},
    "compose-two-services": {
        "files": COMPOSE,
        "solve": "getent hosts helper > /dev/null && cp /shared/said hello.txt\n",
    },
    "compose-multi-step": {**STEPS, "files": STEPS["files"] | COMPOSE},
    "compose-separate-verifier": {"toml": SEPARATE, "files": VERIFIER | COMPOSE},
}


def write_shape(name: str, folder: Path) -> Path:
    """The task of that shape, as `folder`/`name`."""
    return write_task(folder / name, **SHAPES[name])
