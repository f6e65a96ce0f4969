#!/bin/bash
set -e
cat > /app/convert.py << 'END'
import csv
import json
import sys

rows = json.load(open(sys.argv[1]))
keys = sorted({key for row in rows for key in row})
words = {True: "yes", False: "no"}
out = csv.writer(sys.stdout, lineterminator="\n")
out.writerow(keys)
for row in rows:
    values = [row.get(key) for key in keys]
    out.writerow([words[v] if isinstance(v, bool) else "" if v is None else v for v in values])
END
