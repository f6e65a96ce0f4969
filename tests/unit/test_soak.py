"""A few steps of the soak with many faults: the whole program, killed and resumed, loses and doubles nothing."""

import argparse
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import soak
from bench.journal import audit
from bench.kills import AUDITED
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.directory import RunDirectory

STEPS = 16
SHARES = {"requests failed": 0.05, "containers down": 0.1}


class SureFaults(soak.Faults):
    """Each kind comes the third time that it can, and by chance."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.chances: Counter[str] = Counter()

    def comes(self, kind: str, share: float) -> bool:
        self.chances[kind] += 1
        return super().comes(kind, 1.0 if self.chances[kind] == 3 else SHARES.get(kind, share))


class LightMeter(soak.Meter):
    def forget_killed_run(self) -> None:
        """Leave it: to collect all tests' objects takes a third of a second each time."""


@pytest.mark.nightly
async def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    faults, meter = SureFaults(3), LightMeter()
    arguments = argparse.Namespace(steps=STEPS, most_stale=2, trace=False, kills=True, steps_a_life=3, save_every=2)
    await soak.soak(tmp_path, arguments, faults, meter)
    run = RunDirectory(tmp_path / "run")
    seen = asdict(audit(run, STEPS))
    assert {name: seen[name] for name in AUDITED} == dict.fromkeys(AUDITED, 0)
    assert seen["steps"] == STEPS and seen["trials"] >= STEPS * soak.BATCH * soak.GROUP
    kinds = ("kills", "stops", "containers down", "requests failed", *(f"server lost in {call}" for call in soak.CALLS))
    assert all(faults.seen[kind] for kind in kinds)
    assert not any(r["event"] == "ended" and r["fate"] == "dropped" for r in read_lines(run.ledger, checked=True))
    assert meter.kib and all(kib > 0 for kib in meter.kib.values())


def test_the_slope_is_that_of_the_last_four_fifths() -> None:
    meter = soak.Meter()
    meter.kib = {step: 1000.0 * (step < 20) + 3.0 * step for step in range(100)}
    assert meter.slope(100) == pytest.approx(3.0)
