"""An amount of tokens and of container time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Use:
    """`prompt`: tokens of every prompt that was sent, at each turn the whole of it, and of what the base model scored;
    `trained`: tokens of datums; `container_sec`: from a trial's start to its end, each trial's added up.
    """

    prompt: float = 0.0
    sampled: float = 0.0
    trained: float = 0.0
    container_sec: float = 0.0

    @property
    def tokens(self) -> float:
        return self.prompt + self.sampled + self.trained

    def __add__(self, other: "Use") -> "Use":
        return Use(
            self.prompt + other.prompt,
            self.sampled + other.sampled,
            self.trained + other.trained,
            self.container_sec + other.container_sec,
        )
