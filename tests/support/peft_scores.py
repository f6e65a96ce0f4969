"""Log-probabilities of texts by transformers and peft on a CPU; runs in the environment of the cookbook's recipes.

peft_scores.py MODEL ADAPTER|- FILE     FILE: a JSON list of lists of tokens; prints a list of lists of floats
"""

# pyright: reportMissingImports=false
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main(base: str, adapter: str, file: str) -> None:
    """Natural logs of each text's tokens after its first."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if adapter != "-":
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter)
        loaded = {name for name, part in model.named_parameters() if "lora_B" in name and part.abs().max() > 0}
        assert loaded, "no weight of the adapter was loaded"
    found = []
    with torch.no_grad():
        for tokens in json.loads(Path(file).read_text()):
            ids = torch.tensor([tokens])
            logits = model(ids).logits[0, :-1].double().log_softmax(-1)
            found.append(logits.gather(1, ids[0, 1:, None])[:, 0].tolist())
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
