# shellcheck shell=bash
# Sourced by setup.sh: the images that bundled tasks start from, whether a registry answers or not.
BASE_IMAGE="harbortrainer/base:bookworm"
BASE_PACKAGES="bash coreutils findutils grep gawk procps sed tmux"
TOOLS_IMAGE="harbortrainer/tools:bookworm" # for datasets/terminal-basics
TOOLS_PACKAGES="$BASE_PACKAGES bzip2 curl git jq patch python3 unzip xz-utils zip"

ensure_base_image() { ensure_image "$BASE_IMAGE" "$BASE_PACKAGES"; }

ensure_tools_image() { ensure_image "$TOOLS_IMAGE" "$TOOLS_PACKAGES"; }

ensure_images() {
  docker image inspect "$BASE_IMAGE" "$TOOLS_IMAGE" >/dev/null 2>&1 || { ensure_base_image && ensure_tools_image; }
}

# ensure_image NAME PACKAGES
ensure_image() {
  local began=$SECONDS
  if docker image inspect "$1" >/dev/null 2>&1; then return; fi
  say "setup: making image $1"
  image_from_registry "$@" || image_from_packages "$@" || fail "$1 could not be made: no image registry answers, and no Debian packages (see above)"
  docker run --rm --network none "$1" tmux -V >/dev/null || fail "$1 was made, but does not run"
  say "setup: $1 ready in $((SECONDS - began)) s"
}

image_from_registry() {
  timeout 15 docker pull --quiet debian:bookworm-slim >/dev/null 2>&1 || return 1
  timeout 300 docker build --quiet --tag "$1" - >/dev/null <<END
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends $2 && rm -rf /var/lib/apt/lists/*
ENV LANG=C.UTF-8
LABEL harbortrainer.base=1
END
}

# From the machine's own package sources, which are known to answer.
image_from_packages() {
  local sources codename work
  if ! command -v mmdebstrap >/dev/null; then
    may_install || { say "setup: no image registry answers, and mmdebstrap is not installed"; return 1; }
    apt_install mmdebstrap || return 1
  fi
  codename="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")"
  sources="$(distribution_sources)" || return 1
  say "setup: no image registry answers; building from this machine's package sources ($codename, about 20 s)"
  work="$(mktemp -d)"
  as_root mmdebstrap --quiet --variant=minbase --include="${2// /,}" --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' --aptopt='Acquire::Languages "none"' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*' \
    "$codename" - <<<"$sources" 2>"$work/log" |
    docker import --change 'LABEL harbortrainer.base=1' --change 'ENV LANG=C.UTF-8' --change 'CMD ["bash"]' - "$1" >/dev/null || {
    tail -n 5 "$work/log" >&2
    rm -rf "$work"
    return 1
  }
  rm -rf "$work"
}
