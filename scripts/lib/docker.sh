# shellcheck shell=bash
# Sourced by setup.sh: Docker engine and Compose plugin, installed and started where that is allowed.

ensure_docker() {
  ensure_engine_installed
  ensure_engine_running
  ensure_compose
}

engine_answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

ensure_engine_installed() {
  if command -v docker >/dev/null && engine_answers; then return; fi
  if [ -n "${DOCKER_HOST:-}" ]; then # an engine elsewhere is not ours to install or start
    fail "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST; start it, or unset DOCKER_HOST"
  fi
  if command -v docker >/dev/null && { command -v dockerd >/dev/null || [ -x /usr/sbin/dockerd ]; }; then return; fi
  may_install || fail "Docker is not installed and this user may not install it; install Docker Engine, or run this as root on Debian or Ubuntu"
  say "setup: installing Docker engine (docker.io)"
  # iptables: recommended only, but no container gets a network without it
  apt_install docker.io iptables || fail "docker.io could not be installed; install Docker Engine by hand and run this again"
}

# Starts dockerd through systemd, or by itself where there is none. A dockerd started here leaves its id in .state/dockerd.pid.
ensure_engine_running() {
  local reason
  if engine_answers; then return; fi
  reason="$(docker version 2>&1 || true)"
  case "$reason" in *"permission denied"*)
    fail "this user may not use Docker; run: sudo usermod -aG docker $(id -un), then log in again" ;;
  esac
  [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || fail "the Docker engine is not running; start it (sudo systemctl start docker)"
  mkdir -p "$STATE"
  if [ -d /run/systemd/system ]; then
    say "setup: starting Docker engine (systemd)"
    as_root systemctl start docker >&2 || fail "systemctl could not start docker"
  else
    say "setup: starting Docker engine (dockerd, log in .state/dockerd.log)"
    start_dockerd
  fi
  wait_for_engine
}

start_dockerd() {
  local dockerd
  dockerd="$(command -v dockerd || echo /usr/sbin/dockerd)"
  as_root setsid "$dockerd" >"$STATE/dockerd.log" 2>&1 </dev/null &
  echo $! >"$STATE/dockerd.pid"
}

wait_for_engine() {
  for _ in $(seq 150); do
    if engine_answers; then return; fi
    sleep 0.2
  done
  if [ -f "$STATE/dockerd.log" ]; then tail -n 3 "$STATE/dockerd.log" >&2; fi
  fail "the Docker engine did not answer within 30 s"
}

ensure_compose() {
  if docker compose version >/dev/null 2>&1; then return; fi
  say "setup: installing the Docker Compose plugin"
  if may_install; then
    compose_from_packages && return
    compose_from_newer_debian && return
  fi
  fail "docker compose is missing; install the Compose v2 plugin (docker-compose-plugin) and run this again"
}

compose_from_packages() {
  local package
  for package in docker-compose-v2 docker-compose-plugin docker-compose; do
    # docker-compose is v1 in Debian 12, v2 from Debian 13 on
    if apt-cache policy "$package" 2>/dev/null | grep -qE 'Candidate: ([0-9]+:)?[2-9]' && apt_install "$package" &&
      docker compose version >/dev/null 2>&1; then
      return
    fi
  done
  return 1
}

# Debian 12 packages only Compose v1. Compose v2 of Debian 13 is one Go program: taken out of its package into
# ~/.docker, with package lists of its own, so that the machine's own stay as they are.
compose_from_newer_debian() {
  local work sources binary plugins="$HOME/.docker/cli-plugins"
  grep -q '^VERSION_CODENAME=bookworm' /etc/os-release || return 1
  sources="$(distribution_sources)" || return 1
  work="$(mktemp -d)"
  chmod 755 "$work"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  sed 's/bookworm/trixie/g' <<<"$sources" >"$work/trixie.$(sources_format "$sources")"
  (fetch_compose "$work") >"$work/log" 2>&1 || tail -n 3 "$work/log" >&2
  binary="$(find "$work/out" -type f -name docker-compose -perm -u+x 2>/dev/null | head -n 1)"
  if [ -n "$binary" ]; then
    mkdir -p "$plugins"
    install -m 755 "$binary" "$plugins/docker-compose"
  fi
  as_root rm -rf "$work"
  docker compose version >/dev/null 2>&1
}

fetch_compose() {
  local options=(-o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$1" -o "Dir::State::Lists=$1/lists"
    -o "Dir::Cache=$1/cache" -o Acquire::Languages=none)
  cd "$1" || return
  as_root apt-get "${options[@]}" update -qq &&
    as_root apt-get "${options[@]}" -o APT::Sandbox::User=root download -qq docker-compose &&
    dpkg -x docker-compose_*.deb out
}

# For a caller that leaves the machine as it found it: forget an earlier dockerd, then stop the one started since.
forget_own_dockerd() { rm -f "$STATE/dockerd.pid"; }

stop_own_dockerd() {
  local pid
  pid="$(cat "$STATE/dockerd.pid" 2>/dev/null)" || return 0
  say "stopping the Docker engine that was started here"
  as_root kill -TERM "$pid" 2>/dev/null || true
  rm -f "$STATE/dockerd.pid"
}
