#!/bin/bash
. /tests/lib.sh

readable /app
cp /tests/hidden.py "$work" && chmod 755 "$work"
echo 'all right 42' > "$work/right"
echo ok > "$work/ok"
cat /app/test_inventory.py | cksum > "$work/sum"
guard "test_inventory.py unchanged" lines "$work/sum" "1262759219 518"
check "its own tests" prints "$work/ok" 10 python3 /app/test_inventory.py
check "every docstring" prints "$work/right" 10 python3 "$work/hidden.py"
finish
