"""Log-probabilities of texts by transformers and peft on a CPU; runs in the environment of the cookbook's recipes.

peft_scores.py MODEL ADAPTER FILE WHOLE DTYPE     FILE: a JSON list of lists of tokens; WHOLE: a merged model
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def main(base: str, adapter: str, file: str, whole: str, dtype: str) -> None:
    """Natural logs of each text's tokens after its first: with the adapter, without, by the whole model."""
    kind = getattr(torch, dtype)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=kind), adapter)
    texts = json.loads(Path(file).read_text())
    with_adapter = [scores(model, tokens) for tokens in texts]
    with model.disable_adapter():
        without = [scores(model, tokens) for tokens in texts]
    merged = AutoModelForCausalLM.from_pretrained(whole, dtype=kind)
    print("RESULT", json.dumps([with_adapter, without, [scores(merged, tokens) for tokens in texts]]))


def scores(model: torch.nn.Module, tokens: list[int]) -> list[float]:
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logprobs = model(ids).logits[0, :-1].double().log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()


if __name__ == "__main__":
    main(*sys.argv[1:])
