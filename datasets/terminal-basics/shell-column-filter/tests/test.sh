#!/bin/bash
. /tests/lib.sh

readable /app
printf 'name,col our,x\na.b,1,one\naxb,01,two\na*b,1,\n,1 ,two\n-v,,"q"\n' > "$work/in"
filter() { run 10 bash /app/filter.sh "${@:2}" < "$work/in" > "$work/out" 2> "$work/errors" && printf "$1" | cmp -s - "$work/out"; }
missing() { run 10 bash /app/filter.sh -c "$1" -v 1 < "$work/in" > "$work/out" 2> "$work/errors"; [ $? = 2 ] && [ ! -s "$work/out" ] && lines "$work/errors" "no such column: $1"; }
check "a dot is a dot" filter 'name,col our,x\na.b,1,one\n' -c name -v a.b
check "a star is a star" filter 'name,col our,x\na*b,1,\n' -v 'a*b' -c name
check "numbers are text" filter 'name,col our,x\na.b,1,one\na*b,1,\n' -c 'col our' -v 1
check "not" filter 'name,col our,x\naxb,01,two\n,1 ,two\n-v,,"q"\n' -n -c 'col our' -v 1
check "empty field" filter 'name,col our,x\na*b,1,\n' -c x -v ''
check "nothing fits" filter 'name,col our,x\n' -c x -v three
check "no such column" missing colour
check "part of a column" missing col
finish
