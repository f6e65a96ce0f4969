"""Import Terminus-2 without litellm: the policy is sampled in this process, and litellm takes 5 to 9 s and 150 MB."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


class LiteLLM:
    """Stands for Harbor's client of hosted models, which a TrainableTerminus2 never makes."""

    def __init__(self, **_: object) -> None:
        raise RuntimeError("litellm was left out of this process (src/rollout/without_litellm.py)")


@contextmanager
def without_litellm() -> Iterator[None]:
    """Within it, `litellm` and Harbor's client on it are empty modules; afterwards they can be imported as ever."""
    if "litellm" in sys.modules:
        yield
        return
    client = ModuleType("harbor.llms.lite_llm")
    vars(client)["LiteLLM"] = LiteLLM
    stand_ins = {"litellm": ModuleType("litellm"), client.__name__: client}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]
