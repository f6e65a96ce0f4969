# shellcheck shell=bash
# Sourced by setup.sh: the machine's own package sources, to hand to mmdebstrap or to a second set of package lists.

# Prints the distribution's own sources (no third parties'), in the form they have on this machine.
distribution_sources() {
  local file
  for file in /etc/apt/sources.list.d/{debian,ubuntu}.sources /etc/apt/sources.list.d/*.sources; do
    case "$file" in */debian.sources | */ubuntu.sources) ;; *) signed_by_distribution "$file" || continue ;; esac
    if [ -s "$file" ]; then
      grep -v '^#' "$file"
      return
    fi
  done
  grep -hE '^deb .*(debian|ubuntu)' /etc/apt/sources.list 2>/dev/null || {
    say "setup: this machine's package sources were not found in /etc/apt"
    return 1
  }
}

signed_by_distribution() { grep -qE '^Signed-By:.*/(debian|ubuntu)-archive-keyring' "$1" 2>/dev/null; }

sources_format() { if grep -q '^URIs:' <<<"$1"; then echo sources; else echo list; fi; }
