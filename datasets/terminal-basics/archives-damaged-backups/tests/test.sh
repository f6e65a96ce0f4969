#!/bin/bash
. /tests/lib.sh

check "damaged archives" lines /app/damaged.txt 2024-05-03.tar.gz 2024-05-05.tar.gz 2024-05-07.tar.gz
cd /app/restored 2> /dev/null || finish
find . -type f -printf '%P=' -exec cat {} \; -printf '\n' | LC_ALL=C sort > "$work/found"
check "restored files" lines "$work/found" 'back.txt=back 4' 'notes/a.txt=a 2' 'notes/b.txt=b 1' 'notes/c.txt=c 4' 'notes/d.txt=d 6' 'plan.txt=plan 6'
finish
