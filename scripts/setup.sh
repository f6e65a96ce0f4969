#!/usr/bin/env bash
# Brings what is missing on this machine, says each step in a line, and is quick when nothing is.
#   scripts/setup.sh [--dev] [--server] [--sampler] [--docker] [--base-image] [--tools-image] [--tau] [--agents[=NAME,NAME]] [--ray] [--loss] [--all]
#     --dev          trainer environment .venv, tools for tests included (the default)
#     --server       the self-hosted server's environment server/.venv (CUDA where nvidia-smi works)
#     --sampler      vLLM's environment server/vllm/.venv for SAMPLER=vllm (2.4 GB on a CPU; not in --all)
#     --docker       Docker engine, running, with the Compose plugin
#     --base-image   the image the quickstart's tasks start from (includes --docker)
#     --tools-image  the image that datasets/terminal-basics starts from (includes --docker)
#     --tau          tau2-bench's domains for tasks_dir=tau:retail (42 MB; includes --dev)
#     --agents       programs of agents, in .state/agents (scripts/agents/pack): mini-swe-agent, or those that are named
#     --ray          Ray for trials on several machines, hosts=ray (76 MB; includes --dev; not in --all)
#     --loss         torch for loss=MODULE:FUNCTION (with the index's CUDA libraries; includes --dev; not in --all)
#     --all          all of these but --sampler, --ray and --loss, side by side
# VENV=FOLDER: a trainer environment of its own for --dev, --tau, --ray and --loss, instead of .venv.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
# shellcheck source=/dev/null
for part in python apt_sources docker base_image; do source "$ROOT/scripts/lib/$part.sh"; done

setup_one() {
  case "$1" in
    dev) ensure_trainer_env ;;
    tau) ensure_trainer_env && ensure_tau ;;
    ray) ensure_trainer_env && ensure_ray ;;
    loss) ensure_trainer_env && ensure_loss ;;
    agents) ensure_agents mini-swe-agent ;;
    agents=*) IFS=, read -ra names <<<"${1#agents=}" && ensure_agents "${names[@]}" ;;
    server) ensure_server_env ;;
    sampler) ensure_sampler_env ;;
    docker) ensure_docker ;;
    base-image) ensure_docker && ensure_base_image ;;
    tools-image) ensure_docker && ensure_tools_image ;;
    images) ensure_docker && ensure_images ;;
  esac
}

# Those that tests mount, which are left out without them.
agents_or_not() { ensure_tested_agents || say "setup: the agents' programs could not be packed (see above); their tests are left out"; }

# uv first: both environments need it, and two installs of it at once would collide.
setup_all() {
  local jobs=() job failed=0
  ensure_uv
  for part in tau server images; do
    setup_one "$part" &
    jobs+=($!)
  done
  agents_or_not &
  jobs+=($!)
  for job in "${jobs[@]}"; do wait "$job" || failed=1; done
  return "$failed"
}

main() {
  local parts=() argument
  for argument in "$@"; do
    case "$argument" in
      --dev | --server | --sampler | --docker | --base-image | --tools-image | --tau | --agents | --agents=* | --ray | --loss) parts+=("${argument#--}") ;;
      --all) setup_all; exit ;;
      -h | --help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | spoken && exit ;;
      *) fail "unknown option '$argument'; one of --dev --server --sampler --docker --base-image --tools-image --tau --agents --ray --loss --all" ;;
    esac
  done
  mkdir -p "$STATE"
  for argument in "${parts[@]:-dev}"; do setup_one "$argument"; done
}

main "$@"
