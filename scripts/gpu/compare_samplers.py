"""The two samplers of phases_publish beside each other, with the bars:  python -m scripts.gpu.compare_samplers RESULTS

Reads vllm.jsonl and jax.jsonl of a folder of results; what was not measured is "-".
"""

import json
import sys
from pathlib import Path
from typing import Any

Lines = dict[str, dict[str, Any]]


def read(file: Path) -> Lines:
    """The last line of each measure; {} without the file."""
    texts = file.read_text().splitlines() if file.exists() else []
    return {line["measure"]: line for line in map(json.loads, texts)}


def value(lines: Lines, measure: str, name: str) -> float | None:
    return lines.get(measure, {}).get(name)


def rows(vllm: Lines, jax: Lines) -> list[tuple[str, float | None, float | None, float | None, str]]:
    """What, of vLLM, of the JAX sampler, what the bar is about, the bar."""
    wanted = [
        ("cold", "cold_sec", "vLLM / JAX at most 0.5"),
        ("cold", "turn_2_sec", "vLLM / JAX at most 0.2"),
        ("idle", "step_idle_sec", "vLLM / JAX at most 1.05"),
        ("publish", "publish_sec", "vLLM at most 2 s"),
        ("trust", "mean_abs_nats", "vLLM at most 0.02"),
        ("trust", "kl_sampler_trainer", "vLLM at most 1e-3"),
    ]
    found = []
    for measure, name, bar in wanted:
        one, other = value(vllm, measure, name), value(jax, measure, name)
        ratio = one / other if one is not None and other else None
        found.append((f"{measure} {name}", one, other, ratio if "/" in bar else one, bar))
    return found


def text(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}"


def main() -> None:
    folder = Path(sys.argv[1])
    vllm, jax = read(folder / "vllm.jsonl"), read(folder / "jax.jsonl")
    for what, one, other, judged, bar in rows(vllm, jax):
        print(f"{what:28} vLLM {text(one):>8}   JAX {text(other):>8}   {bar}: {text(judged)}")
    for name, lines in (("vLLM", vllm), ("JAX", jax)):
        print(f"publish of {name}, seconds: {json.dumps(lines.get('publish', {}).get('parts', {}))}")
        if failed := {measure: line["failed"] for measure, line in lines.items() if "failed" in line}:
            print(f"{name} failed: {json.dumps(failed)}")


if __name__ == "__main__":
    main()
