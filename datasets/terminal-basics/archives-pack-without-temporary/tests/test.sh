#!/bin/bash
. /tests/lib.sh

guard "data stays" [ "$(cat /app/data/a.tmp /app/data/plan.txt | tr '\n' ,)" = 1,plan, ]
check "compressed with gzip" gzip -qt /app/backup.tar.gz
tar -tzf /app/backup.tar.gz 2> /dev/null | sed 's|/$||' | LC_ALL=C sort > "$work/names"
check "members" lines "$work/names" data data/.hidden data/deep data/deep/er 'data/deep/er/file three' data/deep/link data/empty data/plan.txt data/x.tmp.d data/x.tmp.d/tmp
mkdir "$work/out"
tar -xzf /app/backup.tar.gz -C "$work/out" 2> /dev/null
check "contents" lines "$work/out/data/deep/er/file three" three
check "hidden file" [ "$(stat -c %a "$work/out/data/.hidden") $(cat "$work/out/data/.hidden")" = "600 hidden" ]
check "link" [ "$(readlink "$work/out/data/deep/link")" = ../plan.txt ]
finish
