"""A start makes the arrays that skyrl makes, by fewer programs."""

from pathlib import Path
from typing import Any

import pytest

from scripts.models import tiny_model
from tests.support.engine_programs import results

START = """
import json, sys
import jax, numpy as np, repairs
repairs.apply("engine", repairs.NAMES)
from flax import nnx
from skyrl.backends import jax as backend
from repairs import engine_load, engine_start

settings = {"max_lora_adapters": 3, "max_lora_rank": 4, "enforce_eager": True}
load = engine_load.load

def started():
    before = load.values["compiles"] + load.values["compiles_cached"]
    model = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings), 0).model
    return nnx.split(model), load.values["compiles"] + load.values["compiles_cached"] - before

(kind, ours), few = started()
backend.get_model_class, backend.init_lora_adapter = engine_start.stock_class, engine_start.stock_slot
(same, stock), more = started()
pairs = zip(jax.tree.leaves_with_path(ours), jax.tree.leaves_with_path(stock), strict=True)
other = [str(one) for (one, a), (two, b) in pairs if one != two or a.dtype != b.dtype or not np.array_equal(a, b)]
print("RESULT", json.dumps([kind == same, other, few, more]))
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "size"), [("qwen3", "tiny"), ("llama", "tiny"), ("qwen3", "tiny-moe")])
def test_one_program_makes_the_arrays_that_skyrl_makes(
    server_env: None, tiny_model_dir: Path, tmp_path: Path, kind: Any, size: str
) -> None:
    model = tmp_path / "model"
    tiny_model.write(tiny_model_dir, model, kind, "float32", size)
    same, other, few, more = results(model, START)
    assert same and other == []
    assert few < 120 and more > 60, (few, more)
