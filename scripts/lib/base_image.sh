# shellcheck shell=bash
# Sourced by setup.sh: the image that the quickstart's tasks start from, whether a registry answers or not.
BASE_IMAGE="harbortrainer/base:bookworm"
BASE_PACKAGES="bash coreutils findutils grep gawk procps sed tmux"

ensure_base_image() {
  local began=$SECONDS
  if docker image inspect "$BASE_IMAGE" >/dev/null 2>&1; then return; fi
  say "setup: making image $BASE_IMAGE"
  base_from_registry || base_from_packages || fail "$BASE_IMAGE could not be made: no image registry answers, and no Debian packages (see above)"
  docker run --rm --network none "$BASE_IMAGE" tmux -V >/dev/null || fail "$BASE_IMAGE was made, but does not run"
  say "setup: $BASE_IMAGE ready in $((SECONDS - began)) s"
}

base_from_registry() {
  timeout 15 docker pull --quiet debian:bookworm-slim >/dev/null 2>&1 || return 1
  timeout 300 docker build --quiet --tag "$BASE_IMAGE" - >/dev/null <<END
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends $BASE_PACKAGES && rm -rf /var/lib/apt/lists/*
ENV LANG=C.UTF-8
LABEL harbortrainer.base=1
END
}

# From the machine's own package sources, which are known to answer.
base_from_packages() {
  local sources codename work
  if ! command -v mmdebstrap >/dev/null; then
    may_install || { say "setup: no image registry answers, and mmdebstrap is not installed"; return 1; }
    apt_install mmdebstrap || return 1
  fi
  codename="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")"
  sources="$(distribution_sources)" || return 1
  say "setup: no image registry answers; building from this machine's package sources ($codename, about 20 s)"
  work="$(mktemp -d)"
  as_root mmdebstrap --quiet --variant=minbase --include="${BASE_PACKAGES// /,}" --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' --aptopt='Acquire::Languages "none"' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*' \
    "$codename" - <<<"$sources" 2>"$work/log" |
    docker import --change 'LABEL harbortrainer.base=1' --change 'ENV LANG=C.UTF-8' --change 'CMD ["bash"]' - "$BASE_IMAGE" >/dev/null || {
    tail -n 5 "$work/log" >&2
    rm -rf "$work"
    return 1
  }
  rm -rf "$work"
}
