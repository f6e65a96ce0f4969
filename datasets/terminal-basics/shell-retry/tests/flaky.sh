# flaky.sh FOLDER ARGUMENT...: shows its arguments; fails with 7, 8, ... until its fourth run
n=$(cat "$1/n" 2> /dev/null || echo 0)
n=$((n + 1))
echo "$n" > "$1/n"
shift
printf '<%s>' "$@"
echo
[ "$n" -ge 4 ] || exit $((6 + n))
