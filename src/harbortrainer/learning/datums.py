"""Trajectory + advantage -> training sequences, one for each segment; their digest, metrics and KL penalty."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harbortrainer.learning.trajectory import Role, Trajectory
from harbortrainer.stats import known, ratio


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSequence:
    """One segment of a trajectory, ready for any Tinker API. All arrays have its N tokens.

    tokens (O1 A1 O2 A2 …): observations and sampled answers as they were sent and sampled, never re-tokenised.
    """

    trial_name: str
    tokens_T: np.ndarray  # int32
    mask_T: np.ndarray  # bool: sampled by the policy
    logprobs_T: np.ndarray  # float32, of the sampling policy; 0 where not sampled
    advantages_T: np.ndarray  # float32; 0 where not sampled
    observed_T: np.ndarray | None = None  # float32 weights of what the environment answered as targets; None = none are
    acts: bool = True  # False: only its observations teach

    def with_advantages(self, advantages_T: np.ndarray) -> "TrainingSequence":
        return replace(self, advantages_T=np.where(self.mask_T, advantages_T, 0).astype(np.float32))


def training_sequences(
    trajectory: Trajectory, advantage: float | np.ndarray, *, observed: bool = False, acts: bool = True
) -> list[TrainingSequence]:
    """Return one sequence for each segment with sampled tokens but the side segments.

    `advantage`: the trajectory's, or an array of its turns'. `observed`: what the environment answered is a target too,
    each token with weight 1.
    """
    advantages = np.broadcast_to(advantage, len(trajectory.turns))
    sequences = []
    for segment in sorted({turn.segment for turn in trajectory.turns}.difference(trajectory.side_segments)):
        tokens: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        of_tokens: list[float] = []
        roles = bytearray()
        for turn, own in zip(trajectory.turns, advantages.tolist(), strict=True):
            if turn.segment != segment:
                continue
            new, sampled = turn.new_tokens_T, turn.completion_tokens_T
            tokens += [*new, *sampled]
            mask += [False] * len(new) + [True] * len(sampled)
            logprobs += [0.0] * len(new) + list(turn.logprobs_T)
            of_tokens += [0.0] * len(new) + [own] * len(sampled)
            roles += (turn.roles_T or bytes(len(new))) + bytes(len(sampled))
        if any(mask):
            targets = (np.frombuffer(roles, np.uint8) == Role.ENVIRONMENT).astype(np.float32) if observed else None
            sequence = TrainingSequence(
                trajectory.trial_name, np.array(tokens, np.int32), np.array(mask, np.bool_),
                np.array(logprobs, np.float32), np.array(of_tokens, np.float32), observed_T=targets, acts=acts,
            )  # fmt: skip
            sequences.append(sequence)
    return sequences


def digest(sequences_D: Sequence[TrainingSequence]) -> str:
    """Return a short SHA-256 of the datums in order: names, ids, masks, logprobs, advantages, observed targets."""
    sha = hashlib.sha256()
    for sequence in sequences_D:
        sha.update(f"{sequence.trial_name} {len(sequence.tokens_T)}\n".encode())
        for array in (sequence.tokens_T, sequence.mask_T, sequence.logprobs_T, sequence.advantages_T):
            sha.update(np.ascontiguousarray(array).tobytes())
        if sequence.observed_T is not None:
            sha.update(sequence.observed_T.tobytes() + bytes([sequence.acts]))
    return sha.hexdigest()[:16]


def count_tokens(sequences_D: Sequence[TrainingSequence]) -> Counter[str]:
    """Return tokens by trial, prompts included, in order."""
    tokens: Counter[str] = Counter()
    for sequence in sequences_D:
        tokens[sequence.trial_name] += len(sequence.tokens_T)
    return tokens


def sequence_metrics(sequences_D: Sequence[TrainingSequence], unique_tokens: int) -> dict[str, float]:
    """Return token overhead of the batch; `unique_tokens`: of the trained trajectories, each counted once."""
    sent = sum(len(s.tokens_T) for s in sequences_D)
    acting = sum(int(s.mask_T.sum()) for s in sequences_D)
    trials = len({s.trial_name for s in sequences_D})
    return {
        "train/datums": float(len(sequences_D)),
        "train/tokens": float(sent),
        **known(
            {
                "train/tokens_per_unique_token": ratio(sent, unique_tokens),
                "train/datums_per_trajectory": ratio(len(sequences_D), trials),
                "train/action_token_fraction": ratio(acting, sent),
            }
        ),
    }


def apply_kl_penalty(
    sequences_D: Sequence[TrainingSequence],
    reference_D: Sequence[np.ndarray],
    coefficient: float,
    *,
    centred: bool = True,
) -> tuple[list[TrainingSequence], float]:
    """Return A_t += coefficient * (baseline - d_t) on sampled tokens, d_t = log pi(t) - log reference(t).

    The baseline is mean(d) over the batch if `centred`, as in the Tinker cookbook's penalty beside rewards, else 0, as
    in its on-policy distillation (https://thinkingmachines.ai/blog/on-policy-distillation): each token answers for its
    own log-ratio alone (discount 0). Both have the same expected gradient up to 1 / tokens, since
    E[grad log pi] = 0 (Williams 1992). While the policy is far from the reference, the mean rewards every token on
    which they agree, which can strengthen tokens on which they do not.
    `reference_D`: one array of N natural logs a sequence. Returns new sequences and mean(d), as `mean_log_ratio`.
    """
    ratios_D = _log_ratios(sequences_D, reference_D)
    mean = mean_log_ratio(sequences_D, reference_D)
    baseline = mean if centred else 0.0
    penalised = [
        s.with_advantages(s.advantages_T + coefficient * (baseline - ratio)) if s.acts else s
        for s, ratio in zip(sequences_D, ratios_D, strict=True)
    ]
    return penalised, mean


def mean_log_ratio(sequences_D: Sequence[TrainingSequence], reference_D: Sequence[np.ndarray]) -> float:
    """Return the mean of log pi - log reference over sampled tokens, in nats a token; 0 without any.

    The log-ratio of a token that pi sampled is an unbiased estimate of KL(pi || reference) there (k1,
    http://joschu.net/blog/kl-approx.html).
    """
    tokens = sum(int(s.mask_T.sum()) for s in sequences_D)
    return float(sum(ratio.sum() for ratio in _log_ratios(sequences_D, reference_D)) / max(tokens, 1))


def _log_ratios(sequences_D: Sequence[TrainingSequence], reference_D: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.where(s.mask_T, s.logprobs_T - given, 0.0) for s, given in zip(sequences_D, reference_D, strict=True)]


def trainer_log_ratios(
    sequences_D: Sequence[TrainingSequence], trained_D: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return log p(trainer) - log p(sampler) in nats of each trial's sampled tokens, segment after segment.

    `trained_D`: the trainer's N natural logs of each sequence.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for sequence, trained in zip(sequences_D, trained_D, strict=True):
        parts.setdefault(sequence.trial_name, []).append((trained - sequence.logprobs_T)[sequence.mask_T])
    return {name: np.concatenate(segments) for name, segments in parts.items()}


def some_sequences(sequences_D: Sequence[TrainingSequence], most: int, seed: int, step: int) -> list[TrainingSequence]:
    """Return at most `most` of them in their order, drawn by seed and step."""
    rng = np.random.default_rng([seed, step])
    chosen = rng.choice(len(sequences_D), size=min(most, len(sequences_D)), replace=False)
    return [sequences_D[index] for index in sorted(chosen)]
