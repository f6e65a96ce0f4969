"""Which positions a model has, and up to where it was made for them."""

from typing import Any

import numpy as np
import pytest

from repairs import positions

QWEN3 = {"model_type": "qwen3", "max_position_embeddings": 40_960, "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192, "rope_theta": 1e4}
PLAIN = {"model_type": "llama", "max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("config", "whole"),
    [(QWEN3, 131_072), (PLAIN, 8192), (PLAIN | {"rope_parameters": YARN}, 16_384), ({"model_type": "llama"}, None)],
)
def test_the_whole_context_is_what_the_model_was_made_for(config: dict[str, Any], whole: int | None) -> None:
    assert positions.longest(config) == whole


def test_a_qwen3_has_its_cards_yarn_only_where_its_own_positions_end() -> None:
    own, whole = positions.parameters_of(QWEN3, 40_960), positions.parameters_of(QWEN3)
    assert own["rope_type"] == "default"
    assert (whole["rope_type"], whole["factor"], whole["original_max_position_embeddings"]) == ("yarn", 4.0, 32_768)
    assert whole["rope_theta"] == 1e6
    assert positions.parameters_of(QWEN3 | {"rope_parameters": YARN}, 50_000)["factor"] == 2.0


def test_only_scaling_that_the_config_does_not_name_is_against_the_cards_advice() -> None:
    assert positions.scaled_beyond(QWEN3, 131_072) == positions.scaled_beyond(QWEN3, 0) == 40_960
    assert positions.scaled_beyond(QWEN3, 40_960) is None and positions.scaled_beyond(PLAIN, 0) is None
    assert positions.scaled_beyond(QWEN3 | {"rope_parameters": YARN}, 131_072) is None


def test_what_cannot_be_computed_is_told_with_the_setting() -> None:
    assert positions.trouble(PLAIN, 0) is None and positions.trouble(QWEN3, 131_072) is None
    assert "SKYRL_TX_CONTEXT_LIMIT=8192" in (positions.trouble(PLAIN, 8193) or "")
    dynamic = PLAIN | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}
    assert "rope_type=dynamic" in (positions.trouble(dynamic, 0) or "")


def test_scaling_leaves_short_waves_and_stretches_long_ones() -> None:
    plain, _ = positions.frequencies(128, {"rope_type": "default", "rope_theta": 1e6})
    scaled, factor = positions.frequencies(128, positions.parameters_of(QWEN3))
    assert scaled[0] == plain[0] and scaled[-1] == pytest.approx(plain[-1] / 4)
    assert np.all(np.diff(scaled) < 0) and factor == pytest.approx(0.1 * np.log(4) + 1)
