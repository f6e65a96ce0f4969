#!/bin/bash
. /tests/lib.sh

readable /app
cp /tests/test_roman.py "$work" && chmod 755 "$work"
echo 'all right 42' > "$work/right"
check "to_roman and from_roman" prints "$work/right" 20 python3 "$work/test_roman.py"
finish
