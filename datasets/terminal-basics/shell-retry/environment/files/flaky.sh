#!/bin/sh
# fails twice, then succeeds once; counts in /tmp/flaky
n=$(cat /tmp/flaky 2> /dev/null || echo 0)
n=$((n + 1))
echo "$n" > /tmp/flaky
echo "run $n"
[ $((n % 3)) = 0 ]
