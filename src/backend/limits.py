"""How long anything on the server is waited for, in seconds."""

from dataclasses import dataclass

from src.config import Config

HEALTH_LIMIT_SEC = 10.0
CALL_LIMIT_SEC = 120.0  # a request that the server only has to take note of
CLOSE_LIMIT_SEC = 15.0  # at the end of a run, when nothing depends on it any more


@dataclass(frozen=True, slots=True)
class Limits:
    """`update_sec`: one forward_backward, optim_step or scoring pass, or making, saving or restoring weights.

    `silence_sec`: healthz unanswered. The first call of a shape compiles for up to half a minute on JAX, and a cloud's
    queue may take long.
    """

    update_sec: float = 3600.0
    silence_sec: float = 120.0

    @classmethod
    def of(cls, config: Config) -> "Limits":
        return cls(config.update_timeout_sec)
