#!/bin/bash
. /tests/lib.sh

readable /app
cp /tests/list.py "$work" && chmod 755 "$work"
check "names, times and contents" prints /tests/expected.txt 20 python3 -I "$work/list.py"
finish
