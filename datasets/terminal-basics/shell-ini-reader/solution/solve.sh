#!/bin/bash
set -e
cat > /app/ini.sh << 'END'
WHAT=$1 FILE=$2 SECTION=$3 KEY=$4
export WHAT SECTION KEY
awk '
function trim(text) { sub(/^[ \t]+/, "", text); sub(/[ \t]+$/, "", text); return text }
{ line = trim($0) }
line == "" || line ~ /^[#;]/ { next }
line ~ /^\[.*\]$/ {
  section = trim(substr(line, 2, length(line) - 2)); inside = 1
  if (ENVIRON["WHAT"] == "sections" && !(section in shown)) { shown[section]; print section }
  next
}
inside && section == ENVIRON["SECTION"] && (at = index(line, "=")) {
  key = trim(substr(line, 1, at - 1))
  if (ENVIRON["WHAT"] == "keys" && !(key in known)) print key
  known[key] = trim(substr(line, at + 1))
}
END {
  if (ENVIRON["WHAT"] != "get") exit 0
  if (!(ENVIRON["KEY"] in known)) exit 1
  print known[ENVIRON["KEY"]]
}' "$FILE"
END
