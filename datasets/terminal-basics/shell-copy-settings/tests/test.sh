#!/bin/bash
. /tests/lib.sh

readable /app
open_folder from && from=$folder
open_folder to && to=$folder
mkdir -p "$from/sub.conf" && echo 1 > "$from/a.conf" && echo 2 > "$from/b c.conf" && echo 3 > "$from/d.conf.old"
echo 4 > "$from/sub.conf/e.conf" && echo 5 > "$from/xconf" && chmod -R a+rX "$from"
mkdir "$work/empty" && chmod 755 "$work/empty"
echo 2 > "$work/two"
echo 0 > "$work/zero"
check "says 2" prints "$work/two" 10 sh /app/backup.sh "$from" "$to/new/place"
check "a.conf" lines "$to/new/place/a.conf.bak" 1
check "b c.conf" lines "$to/new/place/b c.conf.bak" 2
check "nothing else" [ "$(ls "$to/new/place" 2> /dev/null | wc -l) $(ls "$to")" = "2 new" ]
check "says 0" prints "$work/zero" 10 sh /app/backup.sh "$work/empty" "$to/other"
finish
