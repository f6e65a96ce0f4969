"""Finds secrets in settings: these are stored in config.json, run.log and wandb, so that a key has no place there."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from harbortrainer.config import RunSettings
from harbortrainer.errors import UserError
from harbortrainer.model_file import ModelFile, Role, model_of

# ends of names: OPENAI_API_KEY, HF_TOKEN, AWS_SECRET_ACCESS_KEY
_SECRET = ("apikey", "accesskey", "privatekey", "secretkey", "authorization", "token", "secret", "password", "passwd")
_SECRET_IN_QUERY = {"key", "auth"}  # as fields of a request these may be something else
_URLS = {
    "skyrl_tx_url": "the environment variable SKYRL_TX_API_KEY",
    "tinker_base_url": "the environment variable TINKER_API_KEY",
}
_MAPPINGS = {
    "agent_kwargs": "an environment variable of the task's image",
    "environment_kwargs": "the environment variable that its service reads, such as DAYTONA_API_KEY, or one that the "
    'tasks name (in task.toml: [environment.env] KEY = "${KEY}")',
}
_FIXED = {"agent_kwargs"}


def secret_problems(config: RunSettings) -> Iterator[str]:
    """Yield a line for each setting that surely holds a secret, which is not shown."""
    for name, place in _URLS.items():
        url = getattr(config, name, None)
        if url is not None and (found := _in_url(url)):
            yield f"{name}: holds {found}, and settings are stored in the run's files; put it into {place}"
    roles: tuple[Role, ...] = ("user", "judge")
    for role in roles:
        with contextlib.suppress(UserError):  # told by `validate`
            if (model := model_of(role, getattr(config, role, None))) is not None:
                yield from secrets_of(role, model)
    if any(_in_git(source) for source in (getattr(config, "tasks_dir", "") or "").split(",")):
        yield (
            "tasks_dir: holds a password or token before a host, and settings are stored in the run's files; give it "
            "to git (git credential, or a URL of ssh), or clone the repository and name the folder"
        )
    for name, place in _MAPPINGS.items():
        if config.resume is not None and name in _FIXED:  # they are those that the run was started with
            continue
        for key in _in_mapping(getattr(config, name, {})):
            yield f"{name}.{key}: holds a secret, and settings are stored in the run's files; put it into {place}"


def secrets_of(role: Role, model: ModelFile) -> Iterator[str]:
    """Yield a line for each secret in the file of a model."""
    place = "settings are stored in the run's files; put it into an environment variable that key names"
    if found := _in_url(model.url):
        yield f"{role}: url holds {found}, and {place}"
    yield from (f"{role}: fields.{key}: holds a secret, and {place}" for key in _in_mapping(model.fields))


def _in_url(url: str) -> str:
    """What is secret in a URL, "" = nothing."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if "@" in parts.netloc:
        return "a name or password before its host"
    named = ((name, _plain(name)) for name, _ in parse_qsl(parts.query))
    return next((f"a secret as {n}" for n, plain in named if plain in _SECRET_IN_QUERY or plain.endswith(_SECRET)), "")


def _in_git(source: str) -> bool:
    """Whether a source of tasks has a password, or a user over https, who is a token; ssh has a user anyway."""
    if not source.strip().startswith("git+"):
        return False
    try:
        parts = urlsplit(source.strip().removeprefix("git+"))
    except ValueError:
        return False
    return parts.password is not None or (parts.scheme in {"http", "https"} and "@" in parts.netloc)


def _in_mapping(values: Mapping[str, Any]) -> Iterator[str]:
    """Keys, joined by dots, whose names say that their value is a secret."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{key}" for key in _in_mapping(value))
        elif isinstance(value, str) and _plain(str(name)).endswith(_SECRET):
            yield str(name)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
