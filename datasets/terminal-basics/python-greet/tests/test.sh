#!/bin/bash
. /tests/lib.sh

readable /app
printf 'Hello, Ana!\nHello, Bo!\n' > "$work/two"
printf 'Hello, world!\n' > "$work/none"
printf 'Hello, Ada King!\nHello, !\nHello, *!\nHello, ä!\n' > "$work/odd"
check "two names" prints "$work/two" 10 python3 /app/greet.py Ana Bo
check "no name" prints "$work/none" 10 python3 /app/greet.py
check "odd names" prints "$work/odd" 10 python3 /app/greet.py 'Ada King' '' '*' 'ä'
finish
