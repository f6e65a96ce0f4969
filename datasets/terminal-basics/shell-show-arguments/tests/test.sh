#!/bin/bash
. /tests/lib.sh

readable /app
printf '2\n[a]\n[b c]\n' > "$work/two"
printf '0\n' > "$work/none"
printf '5\n[*]\n[ x  y ]\n[]\n[-n]\n[a\\nb]\n' > "$work/odd"
check "two arguments" prints "$work/two" 10 sh /app/show.sh a 'b c'
check "none" prints "$work/none" 10 sh /app/show.sh
check "odd ones" prints "$work/odd" 10 sh /app/show.sh '*' ' x  y ' '' -n 'a\nb'
finish
