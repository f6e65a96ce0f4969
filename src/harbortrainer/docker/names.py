"""Names of paths that verification could execute or load, and contents of settings that run a program. Pure tables."""

import re
import sys
from collections.abc import Iterator


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/nix", "/node_modules", "/var/lib/dpkg",
    "/var/lib/apt", "/var/lib/pam", "/var/lib/python", "/var/lib/rpm", "/var/cache/apt", "/var/cache/ldconfig",
    "/var/cache/debconf",
)  # fmt: skip
WORK = re.compile(r"/usr/(share/(nginx|doc|doc-base|man|info|lintian)|(local/)?(src|man)|local/share/(doc|man))(/.*)?")
PROGRAMS = ("bin", "sbin", "libexec", "shims", "condabin")
BELOW_OPT = frozenset(_words("bin sbin condabin lib lib32 lib64 libexec"))
PREFIX_PARTS = _words("bin sbin condabin lib lib32 lib64 libexec share etc conda-meta pyvenv.cfg pip.conf .condarc")
ETC = re.compile(
    r"/etc/(ld\.so\..*|ld-musl-.*|nsswitch\.conf|host\.conf|gai\.conf|profile|bash.*|zsh.*|csh\..*|ksh\.kshrc|fish|"
    r"environment|inputrc|login\.defs|gitconfig|gitattributes|wgetrc|curlrc|netrc|pip\.conf|xdg|uv|python.*|perl|"
    r"npmrc|node.*|ssl|ca-certificates.*|pki|apt|dpkg|debconf\.conf|apk|yum.*|dnf|alternatives|security|pam\..*|"
    r"profile\.d|environment\.d|crypto-policies|conda|mamba|R|java.*|maven|mavenrc|gemrc|php.*|jupyter|ipython|"
    r"matplotlibrc|octave.*|ImageMagick.*|OpenCL|odbc.*|gss|krb5\.conf.*|sudo.*|doas\.conf|default/(locale|su|useradd)|"
    r"magic|magic\.mime|mime\.types|mailcap|tmux\.conf|screenrc|vim|ssh/ssh_config(\.d)?|mercurial|ansible)(/.*)?"
)
# Where a service of the image may run what they name: put back only where the image starts one.
SCHEDULES = ("/etc/crontab", "/etc/cron.d", "/etc/cron.hourly", "/var/spool/cron", "/etc/anacrontab", "/etc/incron.d")
_HOME_NAMES = """.bashrc .bash_profile .bash_login .bash_logout .bash_aliases .bash_env .bash_completion .profile .shrc
.kshrc .zshrc .zshenv .zprofile .zlogin .oh-my-zsh .cshrc .tcshrc .login .inputrc .pam_environment .curlrc .wgetrc
.netrc .gitconfig .git-templates .pip .pydistutils.cfg .pypirc .npmrc .yarnrc .yarnrc.yml .condarc .mambarc .pythonrc
.pythonrc.py .pythonstartup .pdbrc .pdbrc.py .python-version .python-versions .cargo .rustup .nvm .pyenv .asdf .sdkman
.rvm .conda .mamba .pixi .deno .bun .volta .rbenv .gem .gemrc .rspec .bundle .node_modules .node_libraries node_modules
.ipython .jupyter .matplotlib .perldb .proverc .tmux.conf .screenrc .gdbinit .lldbinit .local .uv .aptitude
.nix-profile .dpkg.cfg .xdg .bazelrc .Rprofile .Renviron .octaverc .julia .irbrc .ghci .ocamlinit .vimrc .vim .gvimrc
.exrc .emacs .emacs.d .jq .sqliterc .psqlrc .my.cnf .mylogin.cnf .mongorc.js .mongoshrc.js .hgrc .subversion .magic
.magic.mgc .mailcap .mime.types .lesskey .lessfilter .ackrc .ansible.cfg .mavenrc .pylintrc .coveragerc"""
HOME = frozenset(_words(_HOME_NAMES))
_CONFIG = """go uv pip git python pypoetry conda mamba fish npm yarn pnpm curlrc wgetrc environment.d hatch pdm tmux
sqlite3 vim nvim rspec zsh bash jupyter hg mercurial matplotlib ImageMagick octave procps mise direnv"""
HOME_PARTS = {
    ".config": frozenset(_words(_CONFIG)),
    ".cache": frozenset(_words("uv pip pypoetry hatch pdm conda node npm go-build")),
    ".m2": frozenset(["settings.xml", "extensions.xml"]),
    ".gradle": frozenset(["init.d", "init.gradle", "gradle.properties"]),
}
# Settings of a home that count where they run a program or lead to another file.
HOME_SETTINGS = {
    ".ssh/config": re.compile(r"command|exec|include|provider|xauth", re.IGNORECASE),
    ".ssh/rc": re.compile(""),
    ".ssh/environment": re.compile(""),
    ".gnupg/gpg.conf": re.compile(r"program|exec|viewer", re.IGNORECASE),
    ".gnupg/gpg-agent.conf": re.compile(r"program", re.IGNORECASE),
}
STORES = ("go/pkg/mod", ".m2/repository")  # below a home: the image's files stay as they are, others may come
_TOOL_NAMES = """[ awk base64 basename bash busybox cat chgrp chmod chown cmp comm coreutils cp cut dash date dd diff
dirname du echo egrep env expr false fgrep find gawk grep gunzip gzip head hostname id install kill ldd ln ls
mawk md5sum mkdir mktemp mv nawk nohup od original-awk paste pgrep printenv printf ps pwd
readlink realpath rm rmdir sed seq setsid sh sha256sum sha512sum sleep sort stat su sudo tac tail tar tee test timeout
touch tr true truncate uname uniq wc which whoami xargs xz bzip2 unzip yes
apt apt-get apt-cache apt-key dpkg dpkg-deb dpkg-query dpkg-split gpg gpgv update-ca-certificates ldconfig
uv uvx pip pytest py.test tox nox conda mamba npm npx ssh wget"""
_TOOLS = frozenset(_words(_TOOL_NAMES))
_TOOL = re.compile(r"pip\d[\d.]*|(dpkg|apt|busybox|coreutils)[-.].*")
UPGRADED = re.compile(r"(curl|git|make|node|nodejs|python|perl)(\d[\d.]*)?")  # tasks ask for other versions of these
INTERPRETERS = frozenset(
    _words(
        """ruby php java javac go cargo rustc gcc g++ cc c++ sqlite3 jq psql mysql redis-cli Rscript lua bun deno tsc
    jest mocha vitest rspec prove file diff patch tmux openssl rsync nc ffprobe"""
    )
)  # and programs of tests, besides the tools above
_RUNNER = """pytest _pytest py pluggy iniconfig packaging pygments exceptiongroup tomli attr attrs typing_extensions
importlib_metadata setuptools pkg_resources pip xdist"""
RUNNER = frozenset(_words(_RUNNER))
SITE = frozenset(["sitecustomize", "usercustomize"])
STANDARD = frozenset(sys.stdlib_module_names) | RUNNER | SITE
IMPORTABLE = re.compile(r"([A-Za-z_]\w*)\.(pyc?|(?:[\w-]+\.)?so)")
# Packages that tests import and that are no work of a task.
LIBRARIES = frozenset(
    _words(
        """requests numpy pandas yaml psutil scipy PIL cv2 torch torchvision sklearn bs4 lxml httpx pexpect toml tomli_w
    flask django fastapi starlette uvicorn sqlalchemy pydantic jsonschema aiohttp websockets websocket redis psycopg2
    psycopg pymongo pymysql paramiko jwt cryptography Crypto matplotlib seaborn plotly networkx sympy polars pyarrow
    duckdb transformers tokenizers datasets tensorflow jax jinja2 markdown docx openpyxl pypdf PyPDF2 fitz chess rdkit
    Bio pytz dateutil click rich tqdm regex docker git dulwich pygit2 grpc google selenium playwright pyte ptyprocess
    freezegun hypothesis mock nbformat nbclient nbconvert h5py zstandard lz4 gmpy2 mpmath dotenv six chardet
    charset_normalizer urllib3 certifi idna boto3 responses kubernetes skimage imageio librosa soundfile statsmodels
    xgboost lightgbm spacy nltk gensim shapely geopandas numba cython"""
    )
)
_JS = (
    r"(jest|vitest|babel|ava)\.(config|workspace)\.\w+|\.(mocharc|nycrc|babelrc)(\.\w+)?|\.taprc|\.npmrc|\.yarnrc(\.yml)?"
    r"|\.pnp\.\w+|\.pnpmfile\.cjs|bunfig\.toml"
)
ALWAYS_BESIDE = re.compile(r"conftest\.py|\.?pytest\.(ini|toml)|uv\.toml|\.python-versions?")
# A word of the tests -> names that such a program reads beside the work.
READ_BESIDE = {
    r"npm|npx|yarn|pnpm|bun|jest|mocha|vitest|ava|tap": _JS,
    r"cargo|rustc": r"rust-toolchain(\.toml)?|\.cargo",
    r"mvnw?": r"\.mvn",
    r"prove": r"\.proverc",
    r"rspec|bundle|rake": r"\.rspec|\.bundle",
    r"Rscript|R": r"\.Rprofile|\.Renviron",
    r"php|phpunit|composer": r"phpunit\.xml(\.dist)?",
    r"cov|coverage|pytest_cov": r"\.coveragerc",
    r"jupyter|nbconvert|nbclient|papermill": r"jupyter_\w*config\.(py|json)",
    r"matplotlib|pyplot": r"matplotlibrc",
    r"octave": r"\.octaverc",
    r"pylint": r"\.?pylintrc",
    r"mypy": r"\.?mypy\.ini",
}
FOLDERS_BESIDE = frozenset([".cargo", ".mvn", ".bundle"])  # of these names, with all that is in them
JS_WORDS = re.compile(r"\b(npm|npx|yarn|pnpm|bun|jest|mocha|vitest|ava|tap|node_modules)\b")
_JS_RUNNERS = """jest jest-cli jest-circus jest-runner @jest expect babel-jest mocha chai vitest @vitest vite-node ava
tap tape jasmine jasmine-core nyc c8 playwright @playwright cypress ts-node tsx typescript"""
_JS_PROGRAMS = "jest mocha _mocha vitest ava tap tape jasmine nyc c8 playwright cypress ts-node tsx tsc"
JS_RUNNERS = (*_words(_JS_RUNNERS), *(f".bin/{name}" for name in _words(_JS_PROGRAMS)))  # below node_modules
_GIT_KEYS = _words("""fsmonitor hookspath sshcommand askpass pager editor external textconv command cmd clean smudge
process driver helper program packobjectshook uploadpack receivepack vcs gitproxy difffilter alternaterefscommand
recentobjectshook defaultkeycommand templatedir worktreeconfig allow update""")
_GIT_RUNS = re.compile(rf"(?<![\w-])({'|'.join(_GIT_KEYS)})\s*=[ \t]*([^\n]*)", re.IGNORECASE)
_GIT_SECTIONS = re.compile(r"\[\s*(include|includeif|pager)\b", re.IGNORECASE)
_GIT_HARMLESS = re.compile(  # values that run nothing, or a program of the image
    r":?|true|false|on|off|yes|no|\d|merge|rebase|checkout|none|user|never|"
    r"(cat|less|more|vi|vim|nano|emacs)( --?[\w=-]+)*",
    re.IGNORECASE,
)


def is_tool(name: str) -> bool:
    """Whether it is a program that verifiers run themselves."""
    return name in _TOOLS or _TOOL.fullmatch(name) is not None or UPGRADED.fullmatch(name) is not None


def is_runner(name: str) -> bool:
    """Whether it is a module of pytest, or of what it loads."""
    stem = re.split(r"[-.]", name)[0].lower()
    return stem in RUNNER or stem.startswith(("pytest_", "_pytest"))


def home_paths() -> Iterator[str]:
    """Paths below a home at which changes are looked for."""
    yield from HOME
    for folder, names in HOME_PARTS.items():
        yield from (f"{folder}/{name}" for name in names)
    yield from HOME_SETTINGS
    yield from STORES


def git_runs(settings: bytes) -> bool:
    """Whether settings of a git repository may run a program, or lead to settings elsewhere."""
    text = settings.decode(errors="replace").replace("\\\n", "")
    values = (_value(line) for _, line in _GIT_RUNS.findall(text))
    return _GIT_SECTIONS.search(text) is not None or not all(map(_GIT_HARMLESS.fullmatch, values))


def _value(line: str) -> str:
    """Without a comment, which begins outside quotes."""
    return (line if '"' in line else re.split("[#;]", line)[0]).strip(' \t\r"')


def loads_plugins(entry_points: bytes) -> bool:
    """Whether entry points of a Python package are others than its programs."""
    text = entry_points.decode(errors="replace")
    sections = {line.strip().strip("[]").strip() for line in text.splitlines() if line.strip().startswith("[")}
    return not sections <= {"console_scripts", "gui_scripts"}
