#!/bin/bash
. /tests/lib.sh

check "names" [ "$(ls -A /app/out 2> /dev/null | LC_ALL=C sort | tr '\n' '|')" = 'a.txt|b c.txt|delta.txt|g.csv|run.sh|t.txt|top.md|zip.txt|' ]
cd /app/out 2> /dev/null || finish
check "contents" [ "$(cat a.txt 'b c.txt' delta.txt g.csv run.sh t.txt top.md zip.txt | tr '\n' ,)" = 'alpha,beta,delta,gamma,#!/bin/sh,tango,top,bravo,' ]
finish
