"""Judges a batch: whether agents' histories were recognised. A wire that breaks them trains on prompts said twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WARN_FOREIGN, STOP_FOREIGN = 0.01, 0.2  # share of the turns with a history
WARN_TOKENS = 1.3  # a unique token
WARN_SIDE = 0.5  # share of sampled tokens
FEWEST = 20  # turns with a history, before a run is stopped


@dataclass(frozen=True, slots=True)
class Judged:
    """`line`: a warning, "" = none; `stops`: whether the run must stop with it."""

    foreign_rate: float  # histories with unknown answers, of those with any
    tokens_per_unique_token: float
    side_token_share: float  # of sampled tokens, without loss
    line: str = ""
    stops: bool = False


def judge(stats: Sequence[Mapping[str, float]], sampled_tokens: int) -> Judged:
    """`stats`: of the batch's trials (`Exchange.stats`); `sampled_tokens`: of all of them."""

    def total(name: str) -> float:
        return sum(one.get(name, 0.0) for one in stats)

    foreign, tokens = total("wire_foreign"), total("wire_tokens")
    histories = foreign + total("wire_matched")
    rate = foreign / histories if histories else 0.0
    ratio = tokens / (tokens - total("wire_repeated_tokens")) if tokens else 1.0
    share = total("wire_side_tokens") / sampled_tokens if sampled_tokens else 0.0
    stops = rate > STOP_FOREIGN and histories >= FEWEST
    found = []
    if rate > WARN_FOREIGN:
        found.append(
            f"{foreign:.0f} of {histories:.0f} histories that the agent sent hold answers that this run did not give "
            "it in that form: the agent changes what it sends again, and these prompts are trained twice"
        )
    if ratio > WARN_TOKENS:
        found.append(f"{ratio:.2f} tokens are trained for each unique token: the agent often drops answers")
    if share > WARN_SIDE:
        found.append(f"{share:.0%} of the sampled tokens are beside the agent's own turns and get no loss")
    return Judged(rate, ratio, share, "; ".join(found), stops)
