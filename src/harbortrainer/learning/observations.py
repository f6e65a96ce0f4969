"""What the environment answered as targets: weights of its tokens beside the policy loss, and how well it is known.

L = L_policy + c * mean over trials i of (1/|O_i| * sum over t in O_i of -log p(token_t | all before)), O_i: tokens that
the environment wrote in answer to an action (ECHO, arXiv 2605.24517). Both terms have their own divisors, so that many
tokens of one do not thin out the other.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harbortrainer.learning.datums import TrainingSequence, training_sequences
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup

OWN_RATIO = 1.0  # a sampling logprob that none has: to this project's server it is the token's own, in the same pass
# Without a grade, or with one that is not believed: what the environment said is as real as in a graded trial
REAL = frozenset({Outcome.VERIFIER_ERROR, Outcome.UNASKED})


def observing(trajectory: Trajectory) -> list[TrainingSequence]:
    """Return sequences of a trial without an advantage, of which only the observations teach; [] without any."""
    sequences = training_sequences(trajectory, 0.0, observed=True, acts=False)
    return [one for one in sequences if one.observed_T is not None and one.observed_T.any()]


def only_observing(groups_P: Sequence[TrajectoryGroup], acting: set[str]) -> list[TrainingSequence]:
    """Return those of all trials but the `acting` ones: graded, or lost with a conversation that is REAL."""
    trials = [t for g in groups_P for t in (*g.trajectories_G, *(one for one in g.lost if one.outcome in REAL))]
    return [sequence for t in trials if t.trial_name not in acting for sequence in observing(t)]


def weighed(sequences_D: Sequence[TrainingSequence], coefficient: float) -> list[TrainingSequence]:
    """Get sequences of one optimizer step with `coefficient` / (trials with observations * tokens of the trial's)."""
    tokens: Counter[str] = Counter()
    for sequence in sequences_D:
        if sequence.observed_T is not None and (count := int(np.count_nonzero(sequence.observed_T))):
            tokens[sequence.trial_name] += count
    weights = {name: coefficient / (len(tokens) * count) for name, count in tokens.items()}
    return [
        s if s.observed_T is None else replace(s, observed_T=s.observed_T * np.float32(weights.get(s.trial_name, 0.0)))
        for s in sequences_D
    ]


def as_targets(
    sequences_D: Sequence[TrainingSequence], current_D: Sequence[np.ndarray] | None
) -> list[TrainingSequence]:
    """Return the sequences for a policy loss that teaches observations too.

    Such a loss weighs a token with ratio * advantage. With the policy's own logprob in place of the sampler's the ratio
    is 1, and its gradient is -advantage * grad log p: the weight is the advantage. `current_D`: N natural logs a
    sequence under the weights of this step; None = the server knows OWN_RATIO.
    """
    made: list[TrainingSequence] = []
    for index, s in enumerate(sequences_D):
        if s.observed_T is None or not s.observed_T.any():
            made.append(s)
            continue
        own = np.float32(OWN_RATIO) if current_D is None else current_D[index]
        logprobs_T = np.where(s.observed_T != 0, own, s.logprobs_T).astype(np.float32)
        made.append(replace(s, logprobs_T=logprobs_T, advantages_T=s.advantages_T + s.observed_T))
    return made


def observed_nats(sequences_D: Sequence[TrainingSequence], logprobs_D: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the mean of -log p over all observed tokens, in nats, and their number; {} without any.

    N natural logs a sequence.
    """
    pairs = zip(sequences_D, logprobs_D, strict=True)
    found = [logprobs[s.observed_T != 0] for s, logprobs in pairs if s.observed_T is not None]
    if not (tokens := sum(map(len, found))):
        return {}
    return {"observation/nats": -float(np.concatenate(found).mean()), "observation/tokens": float(tokens)}
