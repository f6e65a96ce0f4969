# shellcheck shell=bash
# Sourced by the unpack scripts, beside which it lies in each transfer. They have set HERE (the transfer's folder), WORK and
# PROJECT.
began=$SECONDS
say() { echo "[$((SECONDS - began)) s] $*"; }
fail() { say "FAILED: $*" && exit 1; }

# Not every machine has xz; Python has it.
unxz() { python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer, 1 << 20)' "$1"; }

# Keeps this transfer's part in WORK. Ends the script until all parts are there, then unpacks them into WORK.
take_in() {
  mkdir -p "$WORK"
  cmp -s "$HERE/parts" "$WORK/parts" || { rm -f "$WORK"/part.* && cp "$HERE/parts" "$WORK/"; } # of another packing
  cp "$HERE"/part.* "$WORK/"
  while read -r sum part; do
    if [ ! -f "$WORK/$part" ]; then say "$(basename "$HERE") taken in; still missing: $part" && exit 0; fi
    echo "$sum  $WORK/$part" | sha256sum --check --quiet || fail "$part is damaged; send its transfer again"
  done <"$WORK/parts"
  cat "$WORK"/part.[0-9]* | tar -x -C "$WORK"
  say "all transfers are here"
}
