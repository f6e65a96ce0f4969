#!/bin/bash
. /tests/lib.sh

readable /app
open_folder state
cp /tests/flaky.sh "$work/flaky.sh" && chmod 755 "$work/flaky.sh"
try() { # try STATUS OUTPUT ERRORS ARGUMENT...
  rm -f "$folder/n"
  run 10 sh /app/retry.sh "${@:4}" > "$work/out" 2> "$work/errors"
  [ $? = "$1" ] && printf "$2" | cmp -s - "$work/out" && printf "$3" | cmp -s - "$work/errors"
}
flaky() { try "${@:1:4}" sh "$work/flaky.sh" "$folder" 'a  b' '' '*'; }
one='<a  b><><*>\n'
usage='usage: retry.sh N COMMAND [ARGUMENT...]\n'
check "succeeds in time" flaky 0 "$one$one$one$one" 'attempt 1 of 9\nattempt 2 of 9\nattempt 3 of 9\nattempt 4 of 9\n' 9
check "in the last run" flaky 0 "$one$one$one$one" 'attempt 1 of 4\nattempt 2 of 4\nattempt 3 of 4\nattempt 4 of 4\n' 4
check "too few runs" flaky 8 "$one$one" 'attempt 1 of 2\nattempt 2 of 2\n' 2
check "first run" try 0 'x y\n' 'attempt 1 of 3\n' 3 echo 'x y'
for n in 0 -1 two 1.5 ''; do
  check "N is '$n'" try 64 '' "$usage" "$n" echo no
done
check "no command" try 64 '' "$usage" 3
finish
