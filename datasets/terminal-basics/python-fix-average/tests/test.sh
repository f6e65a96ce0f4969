#!/bin/bash
. /tests/lib.sh

readable /app
says() { printf "$2" | run 10 python3 /app/average.py > "$work/out" 2> /dev/null && lines "$work/out" "$1"; }
fails() { printf "$1" | run 10 python3 /app/average.py > "$work/out" 2> /dev/null; [ $? = 1 ] && lines "$work/out" 'no numbers'; }
check "four numbers" says 2.50 '1\n2\n3\n4\n'
check "fractions" says 1.67 '1.5\n1.25\n2.25\n'
check "empty lines" says -4.00 '\n-3\n\n  \n-5\n\n'
check "one number" says 7.00 '7'
check "nothing" fails ''
check "only empty lines" fails '\n\n'
finish
