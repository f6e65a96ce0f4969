"""Turns `name=value` words into settings, and checks a Config; an error is one line with field, value and fix."""

import math
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import chz
from chz.blueprint import (
    Blueprint,
    Castable,
    ExtraneousBlueprintArg,
    InvalidBlueprintArg,
    MissingBlueprintArg,
)

from harbortrainer.cli.secrets import secret_problems
from harbortrainer.config import SETTINGS, Config, RunSettings
from harbortrainer.errors import UserError, refuse
from harbortrainer.learning.treatment import outcome_problems
from harbortrainer.model_file import BASE, SCRIPTED, ModelFile, Role, model_of
from harbortrainer.plugins import Group, known, unknown
from harbortrainer.setting import changed, problems, settings
from harbortrainer.text import meant


def read_arguments[T](
    kind: type[T], argv: Sequence[str], words: Sequence[str] = (), saved: Mapping[str, Any] | None = None
) -> T:
    """Return an instance of `kind` from `name=value` over saved values. `--name` is name=true, `--json` is json=-.

    `words`: fields that take words without a name, in this order; a tuple takes all remaining ones. Raises UserError.
    """
    plain = [word for word in argv if _is_plain(word)]
    named = [_named(kind, word) for word in argv if not _is_plain(word)]
    taken, left = _by_field(kind, plain, words)
    try:
        _require_plain_keys(kind, named)
        earlier = _with_keys(saved or {}, named)
        blueprint = Blueprint(kind).apply(earlier, layer_name="saved").apply(taken, layer_name="words")
        return blueprint.make_from_argv([*named, *left], allow_hyphens=True)
    except ExtraneousBlueprintArg as error:
        raise UserError(_unknown_field(str(error), tuple(settings(kind)))) from None
    except MissingBlueprintArg as error:
        names = [name.strip() for name in str(error).rsplit(":", 1)[-1].split(",")]
        how = " ".join(name.upper() if name in words else f"{name}=…" for name in names)
        raise UserError(f"missing: {', '.join(names)} (give {how})") from None
    except InvalidBlueprintArg as error:
        raise UserError(_wrong_type(str(error))) from None
    except ValueError:  # chz raises it for an argument without "="
        lone = next(word for word in (*named, *left) if "=" not in word)
        raise UserError(f"{lone}: neither a setting NAME=VALUE nor an option of this command; see --help") from None


def _require_plain_keys(kind: type, named: Sequence[str]) -> None:
    """Raise UserError for NAME.KEY.KEY=VALUE and NAME.=VALUE of a mapping, which chz cannot take."""
    for word in named:
        full, _, value = word.lstrip("-").partition("=")
        name, dot, key = full.partition(".")
        if dot and name in settings(kind) and ("." in key or not key):
            raise UserError(f"{full}={value}: takes one name after {name}; give {name}.NAME=VALUE")


def _with_keys(saved: Mapping[str, Any], named: Sequence[str]) -> dict[str, Any]:
    """The saved values; a mapping of which `named` gives a key (NAME.KEY=VALUE) becomes its keys, as chz joins them."""
    keyed = {name.partition(".")[0] for word in named if "." in (name := word.lstrip("-").split("=", 1)[0])}
    found: dict[str, Any] = {}
    for name, value in saved.items():
        found |= {f"{name}.{key}": one for key, one in value.items()} if name in keyed else {name: value}
    return found


def given(argv: Sequence[str], name: str) -> str | None:
    """Return the last value of a field in the words, before they are parsed; None also for name= and name=None."""
    values = [word.split("=", 1)[1] for word in argv if re.match(rf"-{{0,2}}{name}=", word)]
    return values[-1] if values and values[-1] not in ("", "None") else None


def _is_plain(word: str) -> bool:
    """Whether a word has no name: an "=" behind a "/" belongs to a path."""
    return not word.startswith("-") and ("=" not in word or "/" in word.split("=", 1)[0])


def _named(kind: type, word: str) -> str:
    if not word.startswith("--") or "=" in word:
        return word
    name = word[2:].replace("-", "_")
    if name == "json":
        return "json=-"
    return f"{name}=true" if chz.chz_fields(kind).get(name) and settings(kind)[name].default is False else word


def _by_field(kind: type, plain: Sequence[str], words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values by field, and the remaining words."""
    taken: dict[str, Any] = {}
    left = list(plain)
    for name in words:
        if not left:
            break
        if typing.get_origin(chz.chz_fields(kind)[name].final_type) is tuple:
            taken[name], left = tuple(left), []
        else:
            taken[name] = Castable(left.pop(0))
    return taken, left


def _unknown_field(message: str, fields: Sequence[str]) -> str:
    match = re.search(r"argument '([^']+)'", message)
    name = match.group(1) if match else "?"
    return f"{name}: no such field; {meant(name, fields) or 'see --help for the fields'}"


def _wrong_type(message: str) -> str:
    match = re.search(r"argument '(.*?)' provided for param '([^']+)'", message, re.DOTALL)
    value, name = (match.group(1), match.group(2)) if match else ("?", "?")
    cast = re.search(r"Could not cast '.*?' to (.+)", message)
    wanted = cast.group(1).strip().removesuffix(" | None") if cast else "of another type"
    if wanted.startswith("Literal["):
        wanted = "one of " + wanted.removeprefix("Literal[").rstrip("]").replace("'", "")
    elif wanted.startswith("dict["):
        return f"{name}={value}: takes names and values; give {name}.NAME=VALUE"
    return f"{name}={value}: must be {_TYPES.get(wanted, wanted)}; see --help"


MOST_NAME = 200  # bytes of a run's name: files beside its folder have longer ones
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple[float, float]": "two numbers with a comma between",
    "Union[int, Literal['auto']]": "a whole number or auto",
}


def validate(config: Config) -> None:
    """Raise one UserError with a line for each problem: field, value, fix."""
    between = (_parts, _agent, _learning, _hosts, _evaluation, _models, run_problems)
    own = [*problems(config), *outcome_problems(config.outcome_policy)]
    refuse([*own, *(line for find in between for line in find(config))])


def _parts(config: Config) -> Iterator[str]:
    """Names of parts that nothing has."""
    groups: tuple[tuple[Group, str], ...] = (("agents", "agent"), ("hosts", "hosts"))
    for group, field in groups:
        usual = SETTINGS[field].default
        for name in dict.fromkeys(getattr(config, field).split(",") if field == "agent" else [getattr(config, field)]):
            if name != usual and ":" not in name and name not in known(group):
                yield unknown(group, field, name, usual)


def _agent(config: Config) -> Iterator[str]:
    if config.max_tokens >= config.context_limit:
        yield (
            f"max_tokens={config.max_tokens}: leaves no room for a prompt in context_limit={config.context_limit}; "
            "lower max_tokens or raise context_limit"
        )
    if config.enable_summarize and config.proactive_summarization_threshold >= config.context_limit:
        yield (
            f"proactive_summarization_threshold={config.proactive_summarization_threshold}: not below "
            f"context_limit={config.context_limit}, every turn would be summarised; lower it"
        )


def _learning(config: Config) -> Iterator[str]:
    if config.loss is not None:
        names = ("loss_fn", "loss_norm", "clip_thresholds", "observation_loss_coef")
        for setting in changed(config, *names):
            yield f"{setting}: without effect while loss={config.loss}; leave it out"
    yield from _sources_of_signal(config)
    if config.group_size == 1 and config.by_rewards:
        yield "group_size=1: a group of one has no advantage over itself, nothing is learned; use 2 or more"
    if config.loss_fn in ("importance_sampling", "dppo"):
        for setting in changed(config, "clip_thresholds"):
            yield f"{setting}: {config.loss_fn} does not clip; use loss_fn=ppo or leave it out"
    if config.loss_fn != "dppo":
        for setting in changed(config, "dppo"):
            yield f"{setting}: without effect with loss_fn={config.loss_fn}; use loss_fn=dppo or leave it out"
    if config.num_substeps > config.batch_size * config.group_size > 0:
        yield (
            f"num_substeps={config.num_substeps}: more optimizer steps than the batch has trajectories "
            f"({config.batch_size} x {config.group_size}); lower it"
        )


def _hosts(config: Config) -> Iterator[str]:
    """What trials on other machines cannot do."""
    if config.hosts == "none":
        return
    if not config.local_environments:
        yield f"environment_type={config.environment_type}: a sandbox service needs no hosts; leave hosts out"
    for setting in changed(config, "max_steps_off_policy"):
        yield f"{setting}: hosts sample the weights published last and no others; leave it out"
    url = config.skyrl_tx_url or os.environ.get("SKYRL_TX_URL", "")
    if config.backend == "skyrl-tx" and urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1"):
        yield f"skyrl_tx_url={url}: with hosts give an address of the server that every host reaches"


def _sources_of_signal(config: Config) -> Iterator[str]:
    for setting in changed(config, "kl_reference") if not config.kl_penalty_coef else ():
        yield f"{setting}: without effect while kl_penalty_coef=0; set it or leave this out"
    if config.oversample_max and config.remove_constant_reward_groups:
        yield (
            f"remove_constant_reward_groups=true: oversample_max={config.oversample_max} leaves constant groups out "
            "already; leave it out"
        )
    if config.own_advantage:
        for setting in changed(config, "normalize_advantages_by_std"):
            yield f"{setting}: without effect while advantage={config.advantage}; leave it out"
    if config.by_rewards:
        return
    if not config.kl_penalty_coef and not config.observation_loss_coef:
        yield (
            "advantage=none: leaves nothing to learn from; set kl_penalty_coef (1 distils from kl_reference) "
            "or observation_loss_coef"
        )
    idle = ("normalize_advantages_by_std", "remove_constant_reward_groups", "oversample_max", "reward")
    for setting in changed(config, *idle):
        yield f"{setting}: without effect while advantage=none; leave it out"


def _evaluation(config: Config) -> Iterator[str]:
    if config.eval_tasks and config.eval_split:
        yield f"eval_split={config.eval_split}: eval_tasks names the held-out tasks already; give only one of the two"
    if not config.eval_tasks and not config.eval_split:
        for setting in changed(config, "eval_every", "allow_family_overlap"):
            yield f"{setting}: no task is held out; set eval_split or eval_tasks"


def _models(config: Config) -> Iterator[str]:
    """Problems of simulated user and judge."""
    roles: tuple[Role, ...] = ("user", "judge")
    for role in roles:
        try:
            found = model_of(role, getattr(config, role))
        except UserError as error:
            yield str(error)
            continue
        if found is None:
            continue
        if found.model in (SCRIPTED, BASE) and role == "user":
            yield from _without_url(found)
        elif found.key is not None and not os.environ.get(found.key):
            yield f"{role}: key={found.key}: this environment variable is not set; export it or put it into .env"
        if role == "judge":
            yield from _judge(found, config)


def _without_url(user: ModelFile) -> Iterator[str]:
    """Problems of a user that is a script or the base model."""
    for name, value in (("url", user.url), ("key", user.key)):
        if value:
            yield f"user: {name}={value}: without effect while model={user.model}; name a model that the URL serves"
    for name, value in user.fields.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if user.model == SCRIPTED:
            yield f"user: fields.{name}={value}: without effect while model={user.model}; leave it out"
        elif name not in ("temperature", "max_tokens"):
            yield f"user: fields.{name}={value}: the base model takes temperature and max_tokens; leave it out"
        elif name == "temperature" and not (number and 0 <= value < math.inf):
            yield f"user: fields.{name}={value}: give a number from 0, or leave it out"
        elif name == "max_tokens" and not (number and isinstance(value, int) and value >= 1):
            yield f"user: fields.{name}={value}: give a number from 1, or leave it out"


def _judge(judge: ModelFile, config: Config) -> Iterator[str]:
    if not judge.weight and judge.taxonomy is None:
        yield "judge: weight=0: the judge has no effect without a taxonomy; raise it, or leave judge out"
    elif not config.by_rewards:
        yield "judge: without effect while advantage=none; leave it out"


def _other_backend(config: RunSettings) -> Iterator[str]:
    """The URL of a server that the run would not use."""
    urls = {"tinker": "tinker_base_url", "skyrl-tx": "skyrl_tx_url"}
    used = urls.pop(config.backend)
    ((needed, name),) = urls.items()
    if config.resume is None and (url := getattr(config, name)):
        fix = f"set backend={needed}, or give its server's URL as {used}"
        yield f"{name}={url}: not used with backend={config.backend}; {fix}"


def run_problems(config: RunSettings) -> Iterator[str]:
    """Yield problems between settings that every run has."""
    name = config.run_name or ""
    if config.resume is None and (Path(name).name != name or len(name.encode()) > MOST_NAME):
        fix = f"must be the name of one folder, {MOST_NAME} bytes at most; logs_dir names the folder it is made in"
        yield f"run_name={name}: {fix}"
    yield from secret_problems(config)
    yield from _other_backend(config)
