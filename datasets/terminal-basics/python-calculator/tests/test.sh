#!/bin/bash
. /tests/lib.sh

readable /app
calc() { run 20 python3 /app/calc.py < /tests/input.txt > "$work/out" 2> /dev/null; cmp -s "$work/out" /tests/output.txt; }
check "values and errors" calc
finish
