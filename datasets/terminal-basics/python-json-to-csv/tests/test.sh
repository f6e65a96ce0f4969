#!/bin/bash
. /tests/lib.sh

readable /app
cp /tests/*.json "$work" && chmod 755 "$work"
check "the example" prints /tests/example.csv 10 python3 /app/convert.py /app/example.json
check "another file" prints /tests/a.csv 10 python3 /app/convert.py "$work/a.json"
check "capitals" prints /tests/b.csv 10 python3 /app/convert.py "$work/b.json"
finish
