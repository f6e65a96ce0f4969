import pytest

from harbortrainer.cli.arguments import validate
from harbortrainer.config import Config
from harbortrainer.errors import UserError


def config(**changes) -> Config:
    return Config(model_name="m", tasks_dir="d", **changes)


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
        ({"clip_high_threshold": 1.2}, ["clip_high_threshold=1.2", "importance_sampling"]),
        ({"loss_fn": "ppo", "clip_low_threshold": 1.5}, ["clip_low_threshold=1.5"]),
        ({"num_substeps": 100}, ["num_substeps=100"]),
        ({"enable_summarize": True, "proactive_summarization_threshold": 40000}, ["proactive_summarization_threshold"]),
        ({"n_epochs": 0}, ["n_epochs=0", "above 0"]),
        ({"skyrl_tx_url": "http://a"}, ["skyrl_tx_url=http://a", "set backend=skyrl-tx"]),
        ({"backend": "skyrl-tx", "tinker_base_url": "https://a"}, ["tinker_base_url=https://a", "set backend=tinker"]),
        ({"run_name": "a/b"}, ["run_name=a/b", "name of one folder", "logs_dir"]),
        ({"trial_timeout_sec": -1.0}, ["trial_timeout_sec=-1.0"]),
    ],
)
def test_bad_combination_names_field_value_and_fix(changes, words):
    with pytest.raises(UserError) as error:
        validate(config(**changes))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_all_problems_are_told_at_once():
    with pytest.raises(UserError) as error:
        validate(config(group_size=1, learning_rate=-1.0))
    assert len(str(error.value).splitlines()) == 2
