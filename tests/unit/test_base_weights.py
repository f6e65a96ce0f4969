"""A server's digest of its base weights tells models of one name and size apart."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.errors import UserError
from harbortrainer.evaluation.policies import Subject, sampled
from repairs.base_weights import BLOCK, BLOCKS, base_weights


def model(folder: Path, size: int, changed: int = -1) -> Path:
    """One whose weights are 0 but, from `changed` on, for a thousandth of the file."""
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
        if changed >= 0:
            file.seek(changed)
            file.write(b"1" * (size // BLOCKS + 1))
    return folder


@pytest.mark.parametrize("size", [1, 100, 3 * BLOCK, BLOCKS * BLOCK * 3])
def test_it_depends_on_every_part_of_the_weights(tmp_path: Path, size: int) -> None:
    (tmp_path / "empty").mkdir()
    assert base_weights(tmp_path / "empty") == ""
    first = base_weights(model(tmp_path / "first", size))
    assert first == base_weights(model(tmp_path / "copy", size))
    places = {size // part for part in (2, 3, 7)}
    assert first not in {base_weights(model(tmp_path / f"at-{place}", size, place)) for place in places}


async def test_an_evaluation_of_a_run_that_had_other_base_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "effective.json").write_text(json.dumps({"server": {"base_weights": "aaaa"}}))
    backend: Any = SimpleNamespace(about={"base_weights": "bbbb"})
    nothing: Any = None
    with pytest.raises(UserError, match=r"checkpoint=run@3: .*base weights aaaa, the server has bbbb"):
        async with sampled(Subject("run@3", run=str(tmp_path)), backend, nothing):
            pass
