#!/usr/bin/env bash
# Builds the transfers for a GPU machine without network, here, on a machine that has one:
#   scripts/gpu/pack.sh [--limit MIB] [--model DIRECTORY] PREFIX      makes PREFIX1, PREFIX2, ...
#   scripts/gpu/pack.sh --server [--limit MIB] [--model DIRECTORY] PREFIX    the same without Docker: server and bench only
#   scripts/gpu/pack.sh --sampler [--limit MIB] PREFIX                the same of vLLM for SAMPLER=vllm, without a model
#   scripts/gpu/pack.sh --agent NAME [--limit MIB] PREFIX             the same of an agent's program for agents_dir
# Docker engine (Debian packages), base image, Python packages of both environments, this project's files as they are,
# and SmolLM2-135M-Instruct or the model in DIRECTORY. A folder has at most MIB (default 53) in its part; prints sizes.
# There, in any order: bash PREFIX1/unpack.sh, bash PREFIX2/unpack.sh, ... The last one starts scripts/gpu/drive.sh.
# --sampler: vLLM and its packages (scripts/gpu/sampler.lock) for a GPU with the machine code of ARCH (default 90: H100,
# H200); there bash PREFIX1/unpack_sampler.sh, ... after the project's own transfers or before them.
# --agent: the program that scripts/agents/pack makes, with its Python; there bash PREFIX1/unpack_agent.sh, ...
# Compressing takes minutes of one core the first time, later only what has changed is compressed (kept in PARTS,
# default .state/gpu-parts). PRESET=6 of xz; 1 is fast.
set -euo pipefail
CALLER="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/../lib/common.sh"
# shellcheck source=/dev/null
for part in python apt_sources docker base_image; do source "$ROOT/scripts/lib/$part.sh"; done
ENGINE="docker.io docker-cli containerd runc iptables libip4tc2 libip6tc2 libxtables12 libnftnl11 libmnl0 libnetfilter-conntrack3
  libnfnetlink0 libseccomp2 libdevmapper1.02.1 libsystemd0 libcap2 libudev1 tini"
RELEASE=trixie # Docker 26.1; ran on Ubuntu 24.04 with kernel 6.18
PARTS="${PARTS:-$STATE/gpu-parts}" PRESET="${PRESET:-6}" ARCH="${ARCH:-90}"
# What serving a model does not load: kernels for other GPUs, FlashAttention 2 (3 is Hopper's), vocabularies
# of Mistral, translations
SAMPLER_WITHOUT="bin vllm/vllm-rs vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so vllm/_qutlass_C.abi3.so
  vllm/_flashmla_C.abi3.so vllm/_flashmla_extension_C.abi3.so vllm/third_party/deep_gemm vllm/third_party/fmha_sm100
  vllm/third_party/triton_kernels xgrammar/lib mistral_common/data pycountry/locales pycountry/tests"

# What no agent loads: the pages of litellm's own server, descriptions of AWS's services
AGENT_WITHOUT="mini-swe-agent/litellm/proxy/_experimental/out mini-swe-agent/botocore/data"

# squeeze NAME: standard input to PARTS/NAME, whole or not at all.
squeeze() { nice xz --x86 --lzma2=preset=$PRESET,dict=128MiB >"$PARTS/$1.new" && mv "$PARTS/$1.new" "$PARTS/$1"; }

archive() { tar --sort=name --owner=0 --group=0 -C "$1" -c .; }

# once NAME FUNCTION: makes PARTS/NAME unless it is there.
once() {
  local work
  if [ ! -f "$PARTS/$1" ]; then
    say "packing $1"
    work="$(mktemp -d)"
    "$2" "$1" "$work" || fail "$1 could not be packed (see above)"
    rm -rf "$work"
  fi
}

# The engine's files without manuals, services and tools that no container needs.
pack_engine() {
  local work=$2 sources options
  sources="$(distribution_sources)" || return 1
  mkdir -p "$work"/{lists,cache/archives}/partial "$work"/{debs,root}
  sed -E "s/(bookworm|trixie|noble|jammy)/$RELEASE/g" <<<"$sources" >"$work/engine.$(sources_format "$sources")"
  options=(-o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work" -o "Dir::State::Lists=$work/lists"
    -o "Dir::Cache=$work/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root)
  # shellcheck disable=SC2086
  (cd "$work/debs" && apt-get "${options[@]}" update -qq && apt-get "${options[@]}" download -qq $ENGINE) || return 1
  for package in "$work"/debs/*.deb; do dpkg -x "$package" "$work/root"; done
  (cd "$work/root" && rm -rf etc usr/share usr/lib/systemd usr/lib/udev usr/bin/{ctr,containerd-shim,containerd-shim-runc-v1,containerd-stress,tini-static})
  archive "$work/root" | squeeze "$1"
}

pack_base() { ensure_docker && ensure_base_image && docker save "$BASE_IMAGE" | squeeze "$1"; }

pack_packages() { "$ROOT/.venv/bin/python" -m scripts.gpu.packages "$2" >&2 && archive "$2" | squeeze "$1"; }

pack_smollm2() { scripts/get_smollm2.sh --packages "$2/smollm2-packages" && archive "$2" | squeeze "$1"; }

pack_directory() { mkdir "$2/$(basename "$model")" && cp -rL "$model"/. "$2/$(basename "$model")" && archive "$2" | squeeze "$1"; }

# pip's form of an environment: a folder for PYTHONPATH.
pack_sampler() {
  local site="$2/site"
  ensure_uv
  "$UV" pip install --quiet --python-version 3.12 --python-platform x86_64-manylinux_2_35 --target "$site" --link-mode copy \
    --no-deps --require-hashes --only-binary :all: -r scripts/gpu/sampler.lock >&2 || return 1
  # shellcheck disable=SC2086
  (cd "$site" && rm -rf $SAMPLER_WITHOUT)
  find "$site" -name '*.so*' -type f -exec strip --strip-unneeded {} + || return 1
  "$ROOT/.venv/bin/python" -m scripts.gpu.fat_binary "$ARCH" "$site"/vllm/_{C,moe_C}_stable_libtorch.abi3.so >&2 || return 1
  archive "$site" | squeeze "$1"
}

# The parts of one agent in the folder of scripts/setup.sh --agents, which is made where it is missing.
pack_agent() {
  local from="$STATE/agents" programs
  scripts/agents/pack "$from" "$agent" || return 1
  programs="$(cd "$from" && grep -lE "/opt/agents/$agent[\"/]" bin/*)" || return 1
  # shellcheck disable=SC2086,SC2046
  tar --sort=name --owner=0 --group=0 -C "$from" $(printf -- '--exclude=%s ' $AGENT_WITHOUT) \
    -c python "$agent" "$agent.lock" $programs | squeeze "$1"
}

# Tracked files and new ones that git does not ignore, as they are now; no tests, docs and tiny policy.
pack_project() {
  git ls-files -z --cached --others --exclude-standard -- . ':!tests' ':!docs' ':!models' ':!datasets/terminal-basics' \
    ':!.venv' ':!server/.venv' ':!.state' |
    while IFS= read -r -d '' file; do if [ -e "$file" ]; then printf '%s\0' "$file"; fi; done |
    tar --null --owner=0 --group=0 -T - -c | squeeze project.tar.xz
}

# transfers SCRIPTS FILE...: files of PARTS, one after another in PREFIX1, PREFIX2, ... with what takes them in there.
transfers() {
  local scripts=$1 part number work
  shift
  rm -rf "$prefix"[0-9]*
  work="$(mktemp -d)"
  tar --owner=0 --group=0 -C "$PARTS" --transform='s,^\([a-z]*\)-[^/]*[.]tar[.]xz$,\1.tar.xz,' -c "$@" |
    split --bytes="${limit}MiB" --numeric-suffixes=1 --suffix-length=2 - "$work/part."
  (cd "$work" && sha256sum part.*) >"$work/parts"
  for part in "$work"/part.*; do
    number="$((10#${part##*.}))"
    mkdir -p "$prefix$number"
    mv "$part" "$prefix$number/"
    cp "$work/parts" "$prefix$number/"
    (cd scripts/gpu && cp $scripts "$prefix$number/") # shellcheck disable=SC2086
    say "$(du -k --apparent-size "$prefix$number/$(basename "$part")" | awk '{printf "%.1f MiB", $1 / 1024}')  $prefix$number"
  done
  rm -rf "$work"
  (cd "$PARTS" && du -ck --apparent-size "$@") | awk '{printf "  %6.1f MiB  %s\n", $1 / 1024, $2}' >&2
}

usage="usage: scripts/gpu/pack.sh [--limit MIB] [--server] [--model DIRECTORY | --sampler | --agent NAME] PREFIX"
limit=53 model="" prefix="" sampler=false agent="" docker=true
while [ $# -gt 0 ]; do
  case "$1" in
    --limit) limit="${2:-}" && shift 2 ;;
    --model) model="$(cd "$CALLER" && realpath -m "${2:-}")" && shift 2 ;;
    --server) docker=false && shift ;;
    --sampler) sampler=true && shift ;;
    --agent) agent="${2:-}" && shift 2 ;;
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
    -*) fail "$usage" ;;
    *) prefix="$(cd "$CALLER" && realpath -m "$1")" && shift ;;
  esac
done
[ -n "$prefix" ] && [[ "$limit" =~ ^[1-9][0-9]*$ ]] || fail "$usage"
[ -z "$model" ] || [ -f "$model/config.json" ] || fail "--model: no config.json in $model"
cd "$ROOT"
command -v xz >/dev/null || fail "xz is missing; install xz-utils"
if [ -z "$agent" ]; then # before anything is compressed, which takes minutes
  [ -x .venv/bin/python ] || fail "the environment .venv is missing; run scripts/setup.sh --dev"
  $sampler || [ -x server/.venv/bin/python ] || fail "the environment server/.venv is missing; run scripts/setup.sh --server"
fi
mkdir -p "$PARTS"

if $sampler; then
  file="sampler-$ARCH-$({ cat scripts/gpu/sampler.lock && echo "$SAMPLER_WITHOUT"; } | sha256sum | cut -c1-12).tar.xz"
  once "$file" pack_sampler
  transfers "unpack_sampler.sh take_in.sh check_sampler.py" "$file"
  exit
fi

if [ -n "$agent" ]; then
  [ -d "scripts/agents/$agent" ] || fail "--agent: scripts/agents/pack knows no agent '$agent'"
  digest="$({ cat scripts/agents/pack scripts/agents/tools.lock "scripts/agents/$agent"/* && echo "$AGENT_WITHOUT"; } | sha256sum | cut -c1-12)"
  file="agent-$agent-$digest.tar.xz"
  once "$file" pack_agent
  transfers "unpack_agent.sh take_in.sh" "$file"
  exit
fi

packages="packages-$(cat scripts/gpu/*.list requirements.lock server/requirements.lock | sha256sum | cut -c1-12).tar.xz"
files=()
if $docker; then
  base="base-$(docker image inspect --format '{{slice .Id 7 19}}' "$BASE_IMAGE" 2>/dev/null || echo new).tar.xz"
  once "engine-$RELEASE.tar.xz" pack_engine
  once "$base" pack_base
  files=("engine-$RELEASE.tar.xz" "$base")
fi
once "$packages" pack_packages
if [ -n "$model" ]; then
  weights="model-$(basename "$model")-$(cat "$model"/config.json "$model"/*.safetensors | sha256sum | cut -c1-12).tar.xz"
  once "$weights" pack_directory
else
  weights="model-smollm2-$(file_hash scripts/models/requirements.lock | cut -c1-12).tar.xz"
  once "$weights" pack_smollm2
fi
pack_project

basename "${model:-SmolLM2-135M-Instruct}" >"$PARTS/model-name"
transfers "unpack.sh take_in.sh" "${files[@]}" "$packages" "$weights" project.tar.xz model-name
