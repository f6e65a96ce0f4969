"""Tokenizers of the bundled models, and those that scripts write, name no class that only transformers 5 has."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from scripts.models.portable_tokenizer import save_portable
from tests.conftest import ROOT
from tests.support.fakes import CHATML, byte_tokenizer

ONLY_IN_5 = {"backend", "extra_special_tokens"}
BUNDLED = ("quickstart", "desk", "shell")


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_tokenizer_is_read_by_transformers_4(name: str) -> None:
    config = json.loads((ROOT / "models" / name / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast" and not ONLY_IN_5 & config.keys()


def test_a_tokenizer_that_is_written_portably_is_the_same(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(CHATML)
    save_portable(tokenizer, tmp_path)
    read = AutoTokenizer.from_pretrained(str(tmp_path))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast" and not ONLY_IN_5 & config.keys()
    text = "<|im_start|>user\nhi<|im_end|>\n<think>"
    assert read.encode(text) == tokenizer.encode(text)
    assert (read.eos_token, read.bos_token, len(read)) == (tokenizer.eos_token, tokenizer.bos_token, len(tokenizer))
    assert read.chat_template == tokenizer.chat_template
