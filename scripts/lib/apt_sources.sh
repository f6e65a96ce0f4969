# shellcheck shell=bash
# Sourced by setup.sh: the machine's own package sources, to hand to mmdebstrap or to a second set of package lists.

# The distribution's own sources (no third parties'), in the form they have on this machine.
distribution_sources() {
  local file
  for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources; do
    if [ -s "$file" ]; then
      grep -v '^#' "$file"
      return
    fi
  done
  grep -hE '^deb .*(debian|ubuntu)' /etc/apt/sources.list 2>/dev/null || { say "setup: no Debian or Ubuntu sources found"; return 1; }
}

sources_format() { if grep -q '^URIs:' <<<"$1"; then echo sources; else echo list; fi; }
