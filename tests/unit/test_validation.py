import pytest

from harbortrainer.cli.arguments import validate
from harbortrainer.cli.secrets import secret_problems
from harbortrainer.errors import UserError
from harbortrainer.sft.arguments import checked
from tests.support.small_settings import config
from tests.support.taxonomy import judge_file, user_file


def test_defaults_are_valid():
    validate(config())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group_size": 1}, ["group_size=1", "advantage"]),
        ({"max_tokens": 4096, "context_limit": 4096}, ["max_tokens=4096", "context_limit=4096"]),
        ({"learning_rate": 0.0}, ["learning_rate=0.0"]),
        ({"learning_rate": float("inf")}, ["learning_rate=inf", "finite"]),
        ({"max_usd": float("nan")}, ["max_usd=nan", "finite"]),
        ({"batch_size": 0}, ["batch_size=0"]),
        ({"temperature": 0.0}, ["temperature=0.0"]),
        ({"eval_split": 1.0}, ["eval_split=1.0"]),
        ({"eval_split": 0.2, "eval_tasks": ("a",)}, ["eval_split=0.2", "eval_tasks"]),
        ({"eval_every": 5}, ["eval_every=5", "held out"]),
        ({"clip_thresholds": (0.8, 1.2)}, ["clip_thresholds=0.8,1.2", "importance_sampling"]),
        ({"loss_fn": "ppo", "clip_thresholds": (1.5, 2.0)}, ["clip_thresholds=1.5,2.0"]),
        ({"loss_fn": "dppo", "dppo": ("tv", -1.0)}, ["dppo=tv,-1.0"]),
        ({"advantage": "median"}, ["advantage=median", "leave_one_out"]),
        ({"num_substeps": 100}, ["num_substeps=100"]),
        ({"enable_summarize": True, "proactive_summarization_threshold": 40000}, ["proactive_summarization_threshold"]),
        ({"n_epochs": 0}, ["n_epochs=0", "above 0"]),
        ({"skyrl_tx_url": "http://a"}, ["skyrl_tx_url=http://a", "set backend=skyrl-tx"]),
        ({"backend": "skyrl-tx", "tinker_base_url": "https://a"}, ["=https://a", "backend=tinker", "skyrl_tx_url"]),
        ({"run_name": "a/b"}, ["run_name=a/b", "name of one folder", "logs_dir"]),
        ({"trial_timeout_sec": -1.0}, ["trial_timeout_sec=-1.0"]),
        ({"max_steps_off_policy": -1}, ["max_steps_off_policy=-1: must be 0 or more"]),
        ({"oversample_max": -1}, ["oversample_max=-1: must be 0 or more"]),
        (
            {"oversample_max": 2, "remove_constant_reward_groups": True},
            ["remove_constant_reward_groups=true: oversample_max=2 leaves constant groups out already"],
        ),
        (
            {"oversample_max": 2, "advantage": "none", "kl_penalty_coef": 1.0},
            ["oversample_max=2: without effect while advantage=none; leave it out"],
        ),
        ({"judge": "nowhere.json"}, ["judge=nowhere.json: cannot be read as JSON"]),
        ({"user": user_file(model=None)}, ["user: give an object with"]),
        ({"user": user_file(weight=1)}, ["user: weight: no such field; one of url, model, key, fields"]),
        *(
            ({who: file(**changes)}, [f"{who}: {words}"])
            for who, file in (("judge", judge_file), ("user", user_file))
            for changes, words in (
                ({"url": None}, f"model={'j' if who == 'judge' else 'gpt'}: give the url of the OpenAI-compatible API"),
                ({"url": "h/v1"}, "url=h/v1: must start with http"),
                ({"url": "http://h:70000/v1"}, "url=http://h:70000/v1: Port out of range"),
                ({"key": "NOT_SET"}, "key=NOT_SET: this environment"),
            )
        ),
        ({"batch_size": 10**12}, ["batch_size=1000000000000: must be above 0, 1000000 at most"]),  # ran for ever
        ({"seed": 10**20}, ["seed=100000000000000000000: must be 0 or more, of 63 bits at most"]),
        ({"logs_dir": ""}, ["logs_dir=: names no folder; give one"]),
        ({"logs_dir": f"{__file__}/runs"}, [f"logs_dir={__file__}/runs: names no folder; give one"]),
        ({"wandb_project": "a/b"}, ["wandb_project=a/b: a project's name has none of /"]),
        ({"judge": judge_file(weight=0.0)}, ["judge: weight=0: the judge has no effect"]),
        ({"judge": judge_file(weight=-1)}, ["judge: weight=-1: must be 0 or more"]),
        ({"judge": judge_file(weight="much")}, ["judge: weight=much: has another type"]),
        ({"judge": judge_file(wait=1)}, ["judge: wait: no such field; one of url, model"]),
        ({"user": user_file(model="base", url=None, key="K")}, ["user: key=K: without effect while model=base"]),
        (
            {"user": user_file(model="scripted", url=None, fields={"seed": 1})},
            ["user: fields.seed=1: without effect"],
        ),
        *(
            (
                {"user": user_file(model="base", url=None, fields={name: value})},
                [f"user: fields.{name}={value}: {words}"],
            )
            for name, value, words in (
                ("top_p", 1, "the base model takes"),
                *(("max_tokens", value, "give a number") for value in (None, 0, 1.5)),
                *(("temperature", value, "give a number") for value in ("hot", -1)),
            )
        ),
    ],
)
def test_bad_combination_names_field_value_and_fix(changes, words):
    with pytest.raises(UserError) as error:
        validate(config(**changes))
    (line,) = str(error.value).splitlines()
    assert all(word in line for word in words), line


def test_a_wrong_model_file_is_named(tmp_path):
    (file := tmp_path / "judge.json").write_text("{}")
    with pytest.raises(UserError, match=f"^judge={file}: give an object with"):
        validate(config(judge=str(file)))


def test_all_problems_are_told_at_once():
    with pytest.raises(UserError) as error:
        validate(config(group_size=1, learning_rate=-1.0))
    assert len(str(error.value).splitlines()) == 2


SECRETS = [
    ({"judge": judge_file(url="https://name:SECRET@host/v1")}, "judge: url holds a name or password"),
    ({"user": user_file(url="https://SECRET@host/v1")}, "user: url holds a name or password"),
    ({"user": user_file(url="https://host/v1?api-version=1&api-key=SECRET")}, "user: url holds a secret as api-key"),
    ({"judge": judge_file(url="https://host/v1?key=SECRET")}, "judge: url holds a secret as key"),
    ({"skyrl_tx_url": "http://u:SECRET@host:8000", "backend": "skyrl-tx"}, "SKYRL_TX_API_KEY"),
    ({"judge": judge_file(fields={"api_key": "SECRET"})}, "judge: fields.api_key: holds a secret"),
    (
        {"user": user_file(fields={"extra_headers": {"Authorization": "SECRET"}})},
        "user: fields.extra_headers.Authorization",
    ),
    ({"user": user_file(fields={"Access-Token": "SECRET"})}, "user: fields.Access-Token: holds a secret"),
    ({"environment_kwargs": {"api_key": "SECRET"}}, "environment_kwargs.api_key: holds a secret"),
    *(
        ({"environment_kwargs": {"env": {name: "SECRET"}}}, f"environment_kwargs.env.{name}: holds a secret")
        for name in ("OPENAI_API_KEY", "HF_TOKEN", "aws_secret_access_key", "PGPASSWORD", "db-secret")
    ),
    ({"agent_kwargs": {"extra": {"token": "SECRET"}}}, "agent_kwargs.extra.token: holds a secret"),
    ({"tasks_dir": "tasks,git+https://SECRET@host/a.git"}, "tasks_dir: holds a password or token"),
    ({"tasks_dir": "git+ssh://git:SECRET@host/a.git@v1#b"}, "tasks_dir: holds a password or token"),
]


@pytest.mark.parametrize(("changes", "words"), SECRETS)
def test_a_secret_in_a_setting_is_refused_and_not_shown(changes, words):
    (line,) = secret_problems(config(**changes))
    assert words in line and "SECRET" not in line
    with pytest.raises(UserError, match="settings are stored in the run's files"):
        validate(config(**changes))


def test_what_may_be_no_secret_is_taken():
    fields = {"max_tokens": 9, "pad_token": 0, "token": None, "key": "a", "logit_bias": {"17": 1}, "stop": ["token"]}
    judge = judge_file(url="https://host/v1?api-version=1", fields=fields)
    user = user_file(url="http://[::1]:8000/v1/a@b", fields=fields)
    assert [*secret_problems(config(judge=judge, user=user, skyrl_tx_url="a@b"))] == []
    for source in (
        "git+https://host/a.git@v1#b",
        "git+ssh://git@host/a.git",
        "git+git@host:a.git",
        "a@2.0",
        "https://a@b",
    ):
        assert [*secret_problems(config(tasks_dir=source))] == []
    resumed = config(agent_kwargs={"token": "x"}, resume="run")
    assert [*secret_problems(resumed)] == [], "it began with it, and nothing else is taken there"


def test_fine_tuning_refuses_a_secret_too():
    with pytest.raises(UserError, match="skyrl_tx_url: holds a name or password"):
        checked(["model_name=m", "data=d.jsonl", "backend=skyrl-tx", "skyrl_tx_url=http://u:p@host"])
