# shellcheck shell=bash
# Sourced by every test.sh of this data set; the same file in each task. Checks outcomes, never how they came about.
# What the agent wrote runs as nobody: it can neither read /tests nor write a reward, and nothing of it lives on.
export PATH=/usr/bin:/bin LC_ALL=C.UTF-8
unset BASH_ENV ENV CDPATH POSIXLY_CORRECT GREP_OPTIONS
umask 022
mkdir -p /logs/verifier
chmod 700 /tests /logs/verifier
rm -f /logs/verifier/reward.*
work=$(mktemp -d /tmp/verify.XXXXXX) # root's only
wanted=0 met=0 broken=0

# check WHAT COMMAND...: a requirement; whether it is met. `check ... || finish` leaves out what makes no sense without.
check() {
  wanted=$((wanted + 1))
  if "${@:2}"; then
    met=$((met + 1))
    echo "met: $1"
  else
    echo "not met: $1"
    return 1
  fi
}

# guard WHAT COMMAND...: what holds before the work and must still hold after it; otherwise the reward is 0.
guard() {
  if "${@:2}"; then echo "kept: $1"; else broken=1; echo "broken: $1"; fi
}

# finish: reward 1 when every requirement is met. finish partial: the share of those met.
finish() {
  local reward=0
  end_all
  if [ "$broken" = 0 ] && [ "$met" = "$wanted" ]; then
    reward=1
  elif [ "$broken" = 0 ] && [ "${1:-}" = partial ]; then
    reward=$(awk "BEGIN { printf \"%.3f\", $met / $wanted }")
  fi
  rm -rf "$work"
  echo "$reward" > /logs/verifier/reward.txt
  exit 0
}

# same FILE EXPECTED: a plain file with exactly this content.
same() { [ -f "$1" ] && [ ! -L "$1" ] && cmp -s "$1" "$2"; }

# lines FILE LINE...: a plain file with exactly these lines.
lines() { [ -f "$1" ] && printf '%s\n' "${@:2}" | cmp -s - "$1"; }

not() { ! "$@"; }

_NOBODY='$( = 65534; $) = "65534 65534"; $< = $> = 65534; $< == 65534 && $> == 65534 or die "still root";'

# as_nobody COMMAND...: without privileges, with a bare environment.
as_nobody() {
  perl -e "$_NOBODY"' exec { $ARGV[0] } @ARGV or exit 127' \
    env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 LC_ALL=C.UTF-8 GIT_PAGER=cat "$@"
}

# Ends everything that runs as nobody, at once.
end_all() { perl -e "$_NOBODY"' kill "KILL", -1'; }

# within SECONDS: that many, or fewer when the whole verifier has taken long: what hangs is graded, too; at least 1.
within() {
  local left=$((80 - SECONDS))
  if [ "$left" -lt 1 ]; then echo 1; elif [ "$left" -lt "$1" ]; then echo "$left"; else echo "$1"; fi
}

# run SECONDS COMMAND...: the agent's own program, with a time limit; its exit status.
run() {
  local status
  timeout -k 1 "$(within "$1")" bash -c "$(declare -f as_nobody); _NOBODY='$_NOBODY'; as_nobody \"\$@\"" bash "${@:2}"
  status=$?
  end_all
  return "$status"
}

# prints EXPECTED SECONDS COMMAND...: it succeeds, and its output is what the file EXPECTED holds.
prints() { run "${@:2}" 2> /dev/null > "$work/printed" && cmp -s "$work/printed" "$1"; }

# repo FOLDER ARGUMENT...: git, safe from what a repository's configuration may run.
repo() { run 10 git -c safe.directory='*' -c core.fsmonitor=false -C "$1" "${@:2}" 2> /dev/null; }

# open_folder NAME: a fresh folder that nobody may write to; its path in $folder.
open_folder() {
  chmod 755 "$work"
  folder=$work/$1
  mkdir "$folder" && chmod 777 "$folder"
}

# readable PATH...: what the agent wrote can be read by nobody, whatever umask it was written with.
readable() { chmod -R a+rX "$@" 2> /dev/null; }

# serve PORT COMMAND...: starts the agent's program; it runs until `end_all`. Fails when it ends, or PORT is
# not open within 20 s.
serve() {
  as_nobody "${@:2}" > /dev/null 2>&1 < /dev/null &
  server=$!
  disown
  is_open "$1"
}

# is_open PORT: waits up to 20 s for it.
is_open() {
  local until=$((SECONDS + $(within 20)))
  while [ "$SECONDS" -le "$until" ]; do
    (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null && return
    [ -d "/proc/$server" ] || pgrep -u 65534 > /dev/null || return
    sleep 0.1
  done
  return 1
}

# ask ARGUMENT...: curl to a service; STATUS and a space, then the answer's body.
ask() { curl -s --noproxy '*' --max-time "$(within 10)" -o "$work/body" -w '%{http_code} ' "$@" && cat "$work/body"; }
