#!/bin/bash
set -e
cat > /app/retry.sh << 'END'
usage() {
  echo 'usage: retry.sh N COMMAND [ARGUMENT...]' >&2
  exit 64
}
case $1 in '' | *[!0-9]*) usage ;; esac
[ "$1" -ge 1 ] && [ $# -ge 2 ] || usage
n=$1 i=0 status=0
shift
while [ "$i" -lt "$n" ]; do
  i=$((i + 1))
  echo "attempt $i of $n" >&2
  "$@" && exit 0
  status=$?
done
exit "$status"
END
