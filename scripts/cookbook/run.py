"""Runs recipes of the cookbook, unmodified, each to its end: run.py PYTHON FOLDER URL NAME..."""
import json, os, shutil, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.cookbook.recipes import RECIPES, Recipe

def run(recipe: Recipe, python: str, folder: Path, url: str) -> None:
    runs = folder / "runs"
    log = folder / f"{recipe.name}.log"
    places = [runs / name for name in recipe.logs or (recipe.name,)]
    for p in places: shutil.rmtree(p, ignore_errors=True)
    if recipe.makes: (runs / recipe.makes).unlink(missing_ok=True)
    args = list(recipe.settings)
    if recipe.model_field: args.append(f"{recipe.model_field}={recipe.model}")
    if not recipe.makes:
        args.append(f"max_steps={recipe.steps}")
        if not recipe.logs: args.append(f"log_path={places[0]}")
    module = "scripts.cookbook" + recipe.module if recipe.module.startswith(".") else f"tinker_cookbook.recipes.{recipe.module}"
    began = time.monotonic()
    env = os.environ | {"TINKER_BASE_URL": url, "TINKER_COOKBOOK_RUNS_DIR": str(runs), "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "HF_DATASETS_CACHE": str(folder/"datasets-cache")}
    with log.open("w") as out:
        status = subprocess.run([python, "-m", module, *([recipe.name] if recipe.module.startswith(".") else []), *args], cwd=folder/"data", env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=900).returncode
    print(recipe.name, "status", status, f"{time.monotonic()-began:.0f} s", flush=True)
    for p in places:
        f = p/"metrics.jsonl"
        if f.exists():
            rows=[json.loads(l) for l in f.read_text().splitlines()]
            print("   ", p.name, len(rows), {k:v for k,v in rows[-1].items() if any(w in k for w in ("grad","nll","reward/total","loss"))})
    if status: print("\n".join(log.read_text().splitlines()[-6:]))

python, folder, url, *names = sys.argv[1:]
for name in names:
    try: run(RECIPES[name], python, Path(folder).resolve(), url)
    except subprocess.TimeoutExpired: print(name, "TIMEOUT", flush=True)
