"""What is known of a task: how the policy did on it lately, and how long it has rested."""

from dataclasses import dataclass, field

ENOUGH = 8  # graded trials that a mean is taken from
LONGEST_REST = 15  # passes over a task in a row; the next one takes it

Measured = tuple[float, int]  # sum of the rewards of graded trials, their number


@dataclass
class Standing:
    """Of one task. `groups`: oldest first; `outside`: measurements in a row that lay outside the band."""

    band: tuple[float, float]
    groups: list[Measured] = field(default_factory=list)
    outside: int = 0
    passed_over: int = 0  # since it was taken last

    @property
    def mean(self) -> float | None:
        """Mean reward of the newest groups that have ENOUGH trials between them; None while there are fewer."""
        total, trials = 0.0, 0
        for rewards, graded in reversed(self.groups):
            total, trials = total + rewards, trials + graded
            if trials >= ENOUGH:
                return total / trials
        return None

    @property
    def rest(self) -> int:
        """How often in a row it is passed over: 3, 7, then 15 times, the more often it was measured outside."""
        return min(2 ** (self.outside + 1) - 1, LONGEST_REST) if self.outside else 0

    def measure(self, measured: Measured) -> None:
        """One more group; trials that nobody graded are in neither number."""
        if not measured[1]:
            return
        self.groups.append(measured)
        mean, (low, high) = self.mean, self.band
        self.outside = self.outside + 1 if mean is not None and not low <= mean <= high else 0
