"""What was spent on what, counted from ledger records; what tokens cost; a cap in USD needs a price."""

import json
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.budget.account import PURPOSES, Account, Spending
from harbortrainer.budget.budget import TABLE, USD_STATUS, Budget, Price, Pricing, count, pricing_of
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.batch import CONSTANT, NO_SIGNAL, TOO_SMALL
from harbortrainer.run.ledger import KILLED
from tests.support.taxonomy import judge_file, user_file


def config(**fields: Any) -> Config:
    given: dict[str, Any] = {"model_name": "m", "tasks_dir": "."} | fields
    return Config(**given)


def trial(
    account: Any, name: str, fate: str = "graded", start: float = 0.0, end: float = 10.0, cause: str = ""
) -> None:
    """100 tokens of prompts and 10 sampled."""
    account.count({"time": start, "event": "started", "trial": name, "task": "t", "attempt": 1})
    record = {"time": end, "event": "ended", "trial": name, "fate": fate, "cause": ""}
    account.count(record | {"prompt_tokens": 100, "sampled_tokens": 10})


def trained(account: Any, step: int, advantages: dict[str, float], **besides: Any) -> None:
    """60 tokens of datums for each trial that is in no other place."""
    trials = [name for name in advantages if name not in besides.get("left_out", {})]
    record = {"time": 20.0, "event": "trained", "step": step, "trials": trials, "tokens": [60] * len(trials)}
    account.count(record | {"advantages": advantages} | besides)


def places(step: int, groups: int = 1, members: int = 2) -> list[str]:
    return [f"s{step:06d}-p{p:02d}-g{g:02d}" for p in range(groups) for g in range(members)]


def tokens(account: Account) -> dict[str, float]:
    return {name: use.tokens for name, use in account.by_purpose().items() if use.tokens}


def test_every_token_is_in_one_purpose() -> None:
    account = Account()
    signal, flat = places(0, groups=2)[:2], places(0, groups=2)[2:]
    for name in (*signal, *flat):
        trial(account, name)
    trial(account, "s000000-p00-g05", "replaced by s000000-p00-g05-a2")
    trial(account, "s000000-p00-g06", "cancelled")
    trial(account, "e000000-p00-g00")
    trial(account, "e000000-p00-g01", "dropped")
    assert account.waiting == 4
    trained(account, 0, dict(zip((*signal, *flat), (0.5, -0.5, 0.0, 0.0), strict=True)))
    assert tokens(account) == {
        "trained": 2 * 170, "constant": 2 * 170, "failed": 220, "cancelled": 110, "evaluation": 110,
    }  # fmt: skip
    assert account.total.tokens == sum(tokens(account).values()) and account.waiting == 0


@pytest.mark.parametrize(("why", "purpose"), [(CONSTANT, "constant"), (NO_SIGNAL, "constant"), (TOO_SMALL, "left_out")])
def test_what_was_left_out_is_counted_by_its_reason(why: str, purpose: str) -> None:
    account, names = Account(), places(3)
    for name in names:
        trial(account, name)
    trained(account, 3, dict.fromkeys(names, 0.0), left_out=dict.fromkeys(names, why))
    assert tokens(account) == {purpose: 220}


@pytest.mark.parametrize("why", ["masked", "too_far"])
def test_masked_trials_and_those_too_far_from_the_policy_are_left_out(why: str) -> None:
    account, names = Account(), places(0, members=3)
    for name in names:
        trial(account, name)
    advantages = dict.fromkeys(names[: 2 if why == "masked" else 3], 0.5)
    trained(account, 0, advantages, **{why: [names[2]]})
    assert tokens(account) == {"trained": 340, "left_out": 110} and account.total.trained == 120


def test_a_conversation_holds_no_container() -> None:
    account = Account()
    for name, conversation in zip(places(0), (True, False), strict=True):
        started = {"time": 0.0, "event": "started", "trial": name, "task": "t", "attempt": 1}
        account.count(started | ({"conversation": True} if conversation else {}))
        ended = {"time": 10.0, "event": "ended", "trial": name, "fate": "graded", "cause": ""}
        account.count(ended | {"prompt_tokens": 100, "sampled_tokens": 10})
    assert account.total == Spending(200, 20, 0, 10.0)


def test_an_update_that_is_made_again_is_paid_for_again_and_its_trials_are_not() -> None:
    account, names = Account(), places(0)
    for name in names:
        trial(account, name)
    for _ in range(2):
        trained(account, 0, {names[0]: 1.0, names[1]: -1.0})
        account.count({"time": 30.0, "event": "resumed", "step": 0})
    assert account.total == Spending(200, 20, 240, 20.0)


def test_with_a_kl_penalty_all_that_is_trained_on_is_scored_and_teaches() -> None:
    account, names = Account(scores=True), places(0)
    for name in names:
        trial(account, name)
    trained(account, 0, dict.fromkeys(names, 0.0))
    assert account.total == Spending(200 + 120, 20, 120, 20.0)
    assert set(tokens(account)) == {"trained"}


def test_a_killed_process_stops_the_clocks_at_its_last_record() -> None:
    account = Account()
    account.count({"time": 0.0, "event": "started", "trial": "s000000-p00-g01", "task": "t", "attempt": 1})
    trial(account, "s000000-p00-g00", start=5.0, end=3600.0)
    closed = {"time": 1e6, "event": "ended", "trial": "s000000-p00-g01", "fate": "cancelled", "cause": KILLED}
    account.count(closed | {"prompt_tokens": 0, "sampled_tokens": 0})
    account.count({"time": 1e6, "event": "resumed", "step": 0})
    assert account.by_purpose()["cancelled"].container_sec == 3600.0 and account.hours == 1.0


def test_records_of_an_earlier_version_have_no_tokens_of_datums() -> None:
    account, names = Account(), places(0)
    for name in names:
        trial(account, name)
    advantages = {names[0]: 1.0, names[1]: -1.0}
    account.count({"time": 20.0, "event": "trained", "step": 0, "trials": names, "advantages": advantages})
    assert tokens(account) == {"trained": 220}


def test_the_summary_is_one_line_with_shares() -> None:
    budget = Budget(config(), Pricing(Price(1.0, 2.0, 3.0)))
    assert budget.summary() == "spent: 0 tokens, 0.00 container hours, 0.00 USD"
    names = places(0)
    for name in (*names, "e000000-p00-g00", "s000001-p00-g00"):
        trial(budget, name, end=900.0)
    trained(budget, 0, {names[0]: 1.0, names[1]: -1.0})
    assert budget.summary() == (
        "spent: 560 tokens (61% trained, 20% evaluation, 20% of a batch that is not trained on yet), "
        "1.00 container hours, 0.00 USD"
    )
    assert budget.brief() == "560 tokens, 0.00 USD"
    assert Budget().summary() == "spent: 0 tokens, 0.00 container hours"


def test_metrics_sum_to_the_whole_and_have_usd_where_there_is_a_price() -> None:
    budget, names = Budget(config(), Pricing(Price(1e6, 2e6, 3e6), usd_per_hour=36.0)), places(0)
    for name in (*names, "e000000-p00-g00"):
        trial(budget, name)
    trained(budget, 0, {names[0]: 1.0, names[1]: -1.0})
    row = budget.metrics()
    for unit in ("tokens", "container_sec", "usd"):
        assert row[f"spend/{unit}"] == pytest.approx(sum(row[f"spend/{unit}_{name}"] for name in PURPOSES))
    by_token = 300 * 1 + 30 * 2 + 120 * 3
    assert row["spend/usd"] == pytest.approx(by_token + 36.0 * budget.account.hours) and budget.account.hours > 0
    assert not any("usd" in name for name in Budget().metrics())


def test_tokens_of_users_and_judges_are_purposes_with_prices_of_their_own(tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    of_policy, of_user = ({"prefill": n, "sample": n, "train": n} for n in (1e6, 2e6))
    prices.write_text(json.dumps({"m": of_policy, "ann": of_user}))
    models = {"user": user_file(model="ann"), "judge": judge_file(model="unknown")}
    used = {"user_prompt_tokens": 30, "user_sampled_tokens": 3, "judge_prompt_tokens": 50, "judge_sampled_tokens": 5}

    def spent(**fields: Any) -> Budget:
        settings = config(prices=str(prices), **fields)
        budget = Budget(settings, pricing_of(settings))
        for number, name in enumerate((*places(0), "e000000-p00-g00")):
            budget.count({"time": 0.0, "event": "started", "trial": name, "task": "t", "attempt": 1})
            record = {"time": 9.0, "event": "ended", "trial": name, "fate": "cancelled" if number else "graded"}
            budget.count(record | {"cause": "", "prompt_tokens": 100, "sampled_tokens": 10} | used)
        return budget

    row = spent(**models).metrics()
    assert (row["spend/tokens_user"], row["spend/tokens_judge"], row["spend/tokens"]) == (99, 165, 330 + 99 + 165)
    assert row["spend/usd_user"] == 99 * 2 and row["spend/usd_judge"] == 0.0, "without a price they cost nothing here"
    assert row["spend/usd"] == 330 + 99 * 2
    assert spent(user="base").metrics()["spend/usd_user"] == 99, "the base model has the policy's price"
    assert spent(max_usd=500.0, **models).over() is not None and spent(max_usd=600.0, **models).over() is None


def test_a_cap_is_told_at_every_record_that_finds_it_reached() -> None:
    told: list[tuple[str, int]] = []
    budget = Budget(config(max_usd=250.0), Pricing(Price(1e6, 0.0, 0.0)))
    budget.on_cap(lambda *over: told.append(over))
    for name in places(0, members=2):
        trial(budget, name)
    assert told == [] and budget.over() is None
    trial(budget, "s000000-p00-g02")
    assert told == [("max_usd=250 is reached: 300.00 USD are spent", USD_STATUS)] == [budget.over()]


def test_the_table_has_a_date_a_source_and_a_whole_price_for_each_model() -> None:
    table = json.loads(TABLE.read_text())
    assert table["as_of"] and table["source"].startswith("https://tinker-docs.thinkingmachines.ai")
    for model in table["models"]:
        pricing = pricing_of(config(model_name=model, max_usd=1.0))
        assert pricing.price and 0 < pricing.price.prefill < pricing.price.sample
        assert table["as_of"] in pricing.source


@pytest.mark.parametrize(
    "value",
    [
        {"models": {"m": {"prefill": 1, "sample": 2, "train": 3}}},
        {"m": {"prefill": 1, "sample": 2, "train": 3}},
        [{"tinker_id": "other"}, {"tinker_id": "m", "prefill": "$1.00", "sample": "$2.00", "train": "$3.00"}],
    ],
)
def test_a_file_of_prices_in_any_of_its_forms(tmp_path: Path, value: Any) -> None:
    (tmp_path / "p.json").write_text(json.dumps(value))
    pricing = pricing_of(config(backend="skyrl-tx", prices=str(tmp_path / "p.json")))
    assert pricing.price == Price(1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "no JSON"),
        ('{"other": {}}', "has no model m"),
        ('[{"tinker_id": ["m"]}]', "has no model m"),
        ('{"m": {"prefill": 1, "sample": 2}}', "needs prefill, sample and train"),
        ('{"m": {"prefill": -1, "sample": 2, "train": 3}}', "prefill=-1"),
        ('{"m": {"prefill": "much", "sample": 2, "train": 3}}', "needs prefill, sample and train"),
    ],
)
def test_a_wrong_file_of_prices_is_one_line(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(UserError, match=words) as error:
        pricing_of(config(prices=str(tmp_path / "p.json")))
    assert str(error.value).startswith("prices=") and "\n" not in str(error.value)


def test_a_cap_in_usd_without_a_price_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"max_usd=5: no price known for m: give prices=FILE \(docs/cost.md\)"):
        pricing_of(config(max_usd=5))
    with pytest.raises(UserError, match="or with usd_per_hour of the server"):
        pricing_of(config(max_usd=5, backend="skyrl-tx"))
    file = tmp_path / "prices.json"
    file.write_text('{"usd_per_hour": 2}')
    assert pricing_of(config(max_usd=5, backend="skyrl-tx", prices=str(file))).usd_per_hour == 2
    for wrong, backend in (("-1", "skyrl-tx"), ("true", "skyrl-tx"), ('"two"', "skyrl-tx"), ("2", "tinker")):
        file.write_text(f'{{"usd_per_hour": {wrong}}}')
        with pytest.raises(UserError, match=r"^prices=.*: usd_per_hour="):
            pricing_of(config(backend=backend, prices=str(file)))
    assert not pricing_of(config(backend="skyrl-tx", model_name="Qwen/Qwen3-8B")).known, (
        "of the cloud, not of one's own"
    )


def test_numbers_of_tokens_are_short() -> None:
    assert [count(n) for n in (7, 1234, 1.23456e6, 2e9)] == ["7 tokens", "1.23 k tokens", "1.23 M tokens", "2 G tokens"]


def test_groups_of_other_batches_wait_for_the_step_that_they_were_composed_for() -> None:
    account = Account()
    one, two = places(1, groups=2)[:2], places(1, groups=2)[2:]
    for name in (*one, *two):
        trial(account, name)
    account.count({"time": 15.0, "event": "composed", "step": 1, "groups": [[1, 0]]})
    trained(account, 1, dict.fromkeys(one, 0.5))
    assert account.waiting == 2, "the other group of batch 1 waits for step 2"
    account.count({"time": 25.0, "event": "composed", "step": 2, "groups": [[1, 1]]})
    trained(account, 2, dict.fromkeys(two, 0.5))
    assert tokens(account) == {"trained": 4 * 170}
