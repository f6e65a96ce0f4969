"""Log-probabilities of texts by transformers and peft on a CPU; runs in the environment of the cookbook's recipes.

peft_scores.py MODEL ADAPTER FILE MERGED     FILE: a JSON list of lists of tokens; MERGED: a folder to write
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from tinker_cookbook.weights import build_hf_model
from transformers import AutoModelForCausalLM


def main(base: str, adapter: str, file: str, merged: str) -> None:
    """Natural logs of each text's tokens after its first: with the adapter, without, and with it merged."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    texts = json.loads(Path(file).read_text())
    with_adapter = [scores(model, tokens) for tokens in texts]
    with model.disable_adapter():
        without = [scores(model, tokens) for tokens in texts]
    build_hf_model(base_model=base, adapter_path=adapter, output_path=merged)
    whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    print("RESULT", json.dumps([with_adapter, without, [scores(whole, tokens) for tokens in texts]]))


def scores(model: torch.nn.Module, tokens: list[int]) -> list[float]:
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logprobs = model(ids).logits[0, :-1].double().log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()


if __name__ == "__main__":
    main(*sys.argv[1:])
