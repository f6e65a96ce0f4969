"""Harbor is imported without litellm for Terminus-2, and has it again for agents with a client of their own."""

import importlib
import subprocess
import sys
from types import ModuleType

import pytest
from harbor.agents import agent_auth_resolution

from harbortrainer.harbor import with_litellm, without_litellm

CONFIG = "harbor.llms.litellm_config"


def test_what_was_imported_without_litellm_finds_providers_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("litellm", CONFIG):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # so that what was here is put back
        del sys.modules[name]
    with without_litellm():
        importlib.import_module(CONFIG)  # as Terminus-2 does
    real = ModuleType("litellm")
    vars(real)["get_llm_provider"] = lambda model: (*reversed(model.split("/")), None, None)
    monkeypatch.setitem(sys.modules, "litellm", real)
    assert agent_auth_resolution.parse_model_name("openai/policy") == (None, "openai/policy")
    with_litellm()
    assert agent_auth_resolution.parse_model_name("openai/policy") == ("openai", "policy")


NAMELESS = """
import os, pwd
del os.environ["HOME"]
pwd.getpwuid = {}.__getitem__
import harbortrainer, harbor.constants
print(harbor.constants.CACHE_DIR)
"""


def test_a_user_without_a_home_and_a_name_imports_harbor() -> None:
    """Harbor asks for the home at import: the command ended in its traceback."""
    done = subprocess.run([sys.executable, "-c", NAMELESS], capture_output=True, text=True, check=False)
    assert done.stdout == "/.cache/harbor\n", done.stderr
