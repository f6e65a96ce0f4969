"""Starts the skyrl Tinker API server on its JAX backend, with skyrl's own flags and our repairs (server/repairs).

Why not `python -m skyrl.tinker.api`: skyrl insists on being a child of `uv run` and resolves an environment of its own
for the engine. Here the API and its engine run under this one interpreter, and the engine:
  - finds server/shims for modules that are imported but never used (torch, peft), where the real ones are missing;
  - dies with its API server, whatever killed that one;
  - says when it is ready for requests (a line "ready: URL ..."); the API answers healthz long before.
A server that listens beyond this machine requires a key (server/api_key.py).
`--sampler vllm` has samples computed by vLLM servers, which server/sampler.py keeps running (server/sampler_start.py).
`--repairs` says which of server/repairs are active: all (default), none (the server as published), or names.
"""

# pyright: reportMissingImports=false
# skyrl is installed in server/.venv, not where types are checked
import argparse
import importlib.metadata
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import sampler_start
from api_key import guarded, take_key
from body_limit import limited
from logs import say
from parent import die_with_parent
from quick_import import import_transformers

import repairs
from repairs import SKYRL_VERSION

ENGINE_FLAG = "--run-engine"
HEADS = ("num_attention_heads", "num_key_value_heads")
CLASSES = ("LlamaForCausalLM", "Llama3ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3_5ForCausalLM")
CLASSES += ("Qwen3_5ForConditionalGeneration", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM")  # of skyrl.tx.models


def check_version() -> None:
    """Exits with one line unless the skyrl that this launcher was written for is installed."""
    try:
        found = importlib.metadata.version("skyrl")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != SKYRL_VERSION:
        sys.exit(f"skyrl: this launcher needs {SKYRL_VERSION}, found {found}; run scripts/setup.sh --server")


def merge_backend_config(flags: list[str]) -> list[str]:
    """Makes one --backend-config of several, later keys winning, so that a user can add to a script's."""
    name = "--backend-config"
    values = [flags[i + 1] for i, flag in enumerate(flags[:-1]) if flag == name]
    rest = [flag for i, flag in enumerate(flags) if flag != name and (i == 0 or flags[i - 1] != name)]
    try:
        merged = {key: value for text in values for key, value in json.loads(text).items()}
    except (ValueError, AttributeError):
        sys.exit(f"{name}: every value must be a JSON object, got {' '.join(values)}")
    return [*rest, name, json.dumps(merged)] if values else rest


def fetch_model(model: str) -> None:
    """Checks a model directory, or brings a hub model into the local cache; exits with one line when it cannot."""
    if Path(model).is_dir():
        if not Path(model, "config.json").is_file() or not any(Path(model).glob("*.safetensors")):
            sys.exit(f"model {model}: the directory needs config.json and *.safetensors")
        return
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(model, allow_patterns=["*.safetensors", "*.json"])  # the engine's own patterns
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        sys.exit(f"model {model}: no such directory, and not to be had from the hub ({reason})")


def check_class() -> None:
    """Exits with one line where skyrl has no class for the model. After configure_api."""
    from skyrl.tinker import api

    from repairs.api_limits import model_config

    found = model_config().get("architectures") or []
    if not set(CLASSES).intersection(found):
        named, name = ", ".join(found) or "no class in its config.json", api.app.state.engine_config.base_model
        sys.exit(f"model {name}: {named}: not computed by this server; it computes {', '.join(CLASSES)}")


def check_parallel() -> None:
    """Exits with one line where the model's heads cannot be spread over the devices. After configure_api."""
    from skyrl.tinker import api

    from repairs.api_limits import model_config

    config, model = api.app.state.engine_config, model_config()
    size = config.backend_config.get("tensor_parallel_size", 1)
    names = HEADS[:1] if "kv_lora_rank" in model else HEADS  # with latent attention all share the keys
    heads = {name: model[name] for name in names if model.get(name)}
    wrong = [f"{name}={count}" for name, count in heads.items() if count % size]
    if wrong and config.backend_config.get("shard_attention_heads", True):
        common = math.gcd(*heads.values())
        able = ", ".join(str(n) for n in range(1, common + 1) if common % n == 0)
        sys.exit(
            f"TP {size}: {' and '.join(wrong)} of {config.base_model} cannot be divided by it; give a TP of {able}"
        )


def check_positions(repaired: list[str]) -> None:
    """Exits with one line where the model has positions that are not computed here. After configure_api."""
    from skyrl.tinker import api

    from repairs.api_limits import model_config
    from repairs.positions import trouble

    limit = api.app.state.context_limit
    if "positions" in repaired and (reason := trouble(model_config(), limit)):
        sys.exit(
            f"model {api.app.state.engine_config.base_model}{f', context of {limit} tokens' * bool(limit)}: {reason}"
        )


def announce_when_ready(marker: Path, url: str, model: str, wiring: sampler_start.Wiring | None) -> None:
    """Prints the ready line once the engine has left its marker (it does so after the API listens) and vLLM answers.

    Where vLLM cannot start, prints why and ends this process.
    """
    began = time.monotonic()
    while not marker.exists() or (wiring is not None and not wiring.is_ready()):
        if wiring is not None and (trouble := wiring.given_up()):
            say(f"error: vLLM did not start{trouble}")
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(0.1)
    say(f"ready: {url} serves {model} after {time.monotonic() - began:.1f} s")


def parse_flags(flags: list[str]) -> argparse.Namespace:
    """skyrl's flags and ours; exits with one line when one is wrong."""
    from skyrl.tinker import api

    parser = argparse.ArgumentParser(prog="server/launch.py", description="skyrl Tinker API server, JAX backend")
    api.add_model(parser, api.EngineConfig)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on")
    parser.add_argument("--repairs", default="all", help=f"all, none, or some of {','.join(repairs.NAMES)}")
    parser.add_argument(
        "--context-limit", type=int, default=0, help="tokens in a sequence; 0: what the model was made for"
    )
    parser.add_argument("--keep-results-sec", type=float, default=900, help="how long the database keeps a result")
    parser.add_argument("--keep-results-mb", type=float, default=1024, help="most that the results kept may take, MiB")
    parser.add_argument("--log-mb", type=int, default=64, help="MiB of vLLM's log before it is put aside")
    sampler_start.add_flags(parser)
    parser.set_defaults(backend="jax")
    args = parser.parse_args(merge_backend_config(flags))
    try:
        args.repairs = repairs.chosen(args.repairs)
    except ValueError as error:
        sys.exit(str(error))
    return args


def configure_api(args: argparse.Namespace) -> None:
    """The configuration that skyrl, the repairs and the sampler's start read."""
    from skyrl.tinker import api

    fields = {name: value for name, value in vars(args).items() if name in api.EngineConfig.model_fields}
    if "positions" in args.repairs and args.context_limit:
        fields["backend_config"] = fields["backend_config"] | {"context_limit": args.context_limit}
    api.app.state.engine_config = api.EngineConfig.model_validate(fields)
    api.app.state.context_limit = args.context_limit
    api.app.state.keep_results_sec = args.keep_results_sec
    api.app.state.keep_results_mb = args.keep_results_mb


def repair_api(args: argparse.Namespace, wiring: sampler_start.Wiring | None) -> None:
    """Applies the API's part of the repairs; without any, the server stays as published, healthz included."""
    from skyrl.tinker import api

    api.app.state.vllm = wiring
    if args.repairs:
        from repairs import api_health

        repairs.apply("api", args.repairs)
        api_health.apply(args.repairs, SKYRL_VERSION)


def run_api(flags: list[str]) -> None:
    import uvicorn
    from heads import HeadsInTime
    from skyrl.tinker import api

    args = parse_flags(flags)
    key = take_key(args.host)
    fetch_model(args.base_model)

    with tempfile.TemporaryDirectory(prefix="skyrl-tx-") as folder:
        marker = Path(folder, "ready")
        os.environ["SKYRL_TX_LOAD_FILE"] = str(Path(folder, "load.json"))  # for the engine, and healthz
        os.environ["SKYRL_TX_LISTENS_FILE"] = str(Path(folder, "listens"))  # for the engine
        os.environ["SKYRL_TX_TAKEN_FILE"] = str(taken := Path(folder, "taken"))  # for the engine

        def engine_command(_parent_command: list[str], config: api.EngineConfig) -> list[str]:
            own = [sys.executable, __file__, ENGINE_FLAG, str(os.getpid()), str(marker), ",".join(args.repairs)]
            return [*own, *api.config_to_argv(config)]

        api._build_uv_run_cmd_engine = engine_command
        configure_api(args)
        check_class()
        check_parallel()
        check_positions(args.repairs)
        sampler_start.choose(args)
        url = f"http://{args.host}:{args.port}"
        with sampler_start.sampling(args, taken) as wiring:
            repair_api(args, wiring)
            announcement = (marker, url, args.base_model, wiring)
            threading.Thread(target=announce_when_ready, args=announcement, daemon=True).start()
            uvicorn.run(
                guarded(limited(api.app), key),
                host=args.host,
                port=args.port,
                http=HeadsInTime,
                log_config=api.get_uvicorn_log_config(),
                backlog=api.SKYRL_HTTP_CONNECTION_LIMIT,
                timeout_keep_alive=api.HTTP_KEEP_ALIVE_TIMEOUT_SECONDS,
                timeout_graceful_shutdown=2,  # a client's long poll must not hold up a stop
            )


def run_engine(parent: int, marker: str, names: str, flags: list[str]) -> None:
    die_with_parent(parent)
    import_transformers()
    repairs.apply("engine", names.split(","))
    from skyrl.tinker import engine

    class AnnouncingEngine(engine.TinkerEngine):
        def run(self) -> None:
            for file in (marker, os.environ["SKYRL_TX_TAKEN_FILE"]):
                Path(file).touch()
            super().run()

    engine.TinkerEngine = AnnouncingEngine
    sys.argv = ["skyrl.tinker.engine", *flags]
    engine.main()


def main() -> None:
    check_version()
    sys.path.append(str(Path(__file__).parent / "shims"))  # last: a real torch or peft comes first
    if sys.argv[1:2] == [ENGINE_FLAG]:
        run_engine(int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
    else:
        run_api(sys.argv[1:])


if __name__ == "__main__":
    main()
