"""A model over two devices computes what it computes on one: here a mixture of experts over two CPU devices."""

from pathlib import Path

import numpy as np
import pytest

from bench.one_step import run, sequences
from scripts.models import tiny_model
from tests.conftest import live_server


@pytest.mark.nightly
async def test_a_mixture_of_experts_over_two_devices_makes_the_update_of_one(
    tiny_model_dir: Path, server_env: None, tmp_path: Path
) -> None:
    model = tmp_path / "moe"
    tiny_model.write(tiny_model_dir, model, "qwen3", "float32", "tiny-moe")
    found = []
    for devices in (1, 2):
        with live_server(model, tmp_path / str(devices), devices=devices) as url:
            found.append(await run(url, str(model), sequences(datums=4, tokens=32, vocabulary=200)))
    one, two = ({name: np.array(each[name]) for name in ("before", "after", "sampled")} for each in found)
    assert np.abs(one["after"] - one["before"]).mean() > 0.05  # the update moved it
    np.testing.assert_allclose(two["before"], one["before"], atol=1e-5)
    np.testing.assert_allclose(two["after"], one["after"], atol=1e-5)
    np.testing.assert_array_equal(two["sampled"], one["sampled"])
