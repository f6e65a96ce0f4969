#!/bin/bash
set -e
cd /app
python3 - <<'END'
text, rows, row, field, quoted, i = open("stock.csv").read(), [], [], "", False, 0
while i < len(text):
    c = text[i]
    if quoted and c == '"' and text[i + 1 : i + 2] == '"':
        field, i = field + '"', i + 1
    elif c == '"':
        quoted = not quoted
    elif not quoted and c in ",\n":
        row, field = [*row, field], ""
        if c == "\n":
            rows, row = [*rows, row], []
    else:
        field += " " if c == "\n" else c
    i += 1
open("stock.tsv", "w").writelines("\t".join(r) + "\n" for r in rows if r[3] != "0")
END
