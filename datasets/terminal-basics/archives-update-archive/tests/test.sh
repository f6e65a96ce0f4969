#!/bin/bash
. /tests/lib.sh

TZ=UTC tar --numeric-owner -tvf /app/site.tar 2> /dev/null | grep -v '/$' | awk '{ print $1, $2, $4, $5, $6, $7, $8 }' | sed 's/ *$//' | LC_ALL=C sort > "$work/all"
grep -E 'kept|run' "$work/all" > "$work/kept"
guard "other members" lines "$work/kept" '-rw------- 0/0 2021-03-04 05:06 old/kept draft.txt' '-rwxr-x--- 5/50 2021-03-04 05:06 bin/run'
guard "their contents" [ "$(tar -xOf /app/site.tar 'old/kept draft.txt' bin/run | tr '\n' ,)" = 'kept,#!/bin/sh,' ]
check "members" [ "$(tar -tf /app/site.tar | grep -v '/$' | LC_ALL=C sort | tr '\n' ,)" = 'bin/run,index.html,legal/imprint.html,old/kept draft.txt,' ]
check "index.html" [ "$(tar -xOf /app/site.tar index.html 2> /dev/null)" = '<h1>Welcome back</h1>' ]
check "imprint.html" [ "$(tar -xOf /app/site.tar legal/imprint.html 2> /dev/null)" = '<p>Harbour library, Quay 3</p>' ]
check "not compressed" [ "$(tail -c +258 /app/site.tar | head -c 5)" = ustar ]
finish
