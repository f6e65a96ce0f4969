"""A start on a GPU does once what a probe asks for: then nothing of it is compiled again, and nothing of it is left."""

import pytest

from tests.conftest import MODEL
from tests.support.engine_programs import results

REHEARSAL = """
import json, sys
import repairs
repairs.apply("engine", repairs.NAMES)
from skyrl.backends import jax as backend
from repairs import engine_load, engine_rehearsal

settings = {"max_lora_adapters": 2, "max_lora_rank": 4, "sample_max_num_sequences": 2}
engine, values = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings), 0), engine_load.load.values

def compiled():
    before = values["compiles"] + values["compiles_cached"]
    engine_rehearsal.rehearse(engine)
    return values["compiles"] + values["compiles_cached"] - before

first, waves = compiled(), values["waves"]
print("RESULT", json.dumps([first, waves, compiled(), list(engine.models), engine.seats.busy]))
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("server_env")
def test_what_was_rehearsed_is_not_compiled_again_and_leaves_nothing() -> None:
    first, waves, again, models, busy = results(MODEL, REHEARSAL)
    assert first > 5 and waves == 1, "a pass, a step and a sampled wave"
    assert (again, models, busy) == (0, [], False)
