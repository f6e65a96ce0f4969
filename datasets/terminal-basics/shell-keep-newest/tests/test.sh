#!/bin/bash
. /tests/lib.sh

readable /app
open_folder files
cd "$folder" || exit
for day in 2024-03-01 2023-11-30 2024-02-29 2022-12-31; do touch "db-$day.tar" "my site-$day.tar" "db-old-$day.tar.gz"; done
touch -- db-old-2020-01-01.tar db-old-2021-01-01.tar db-2024-3-1.tar -2020-01-01.tar xdb-2019-01-01.tar db-2019-01-01.tar.bak 'a*-2020-05-05.tar'
mkdir db-2018-01-01.tar
touch -d 2030-01-01 db-2022-12-31.tar
chmod 777 .
ls -A > "$work/before"
printf '%s\n' db-2022-12-31.tar db-2023-11-30.tar 'my site-2022-12-31.tar' 'my site-2023-11-30.tar' > "$work/two"
printf '%s\n' db-2024-02-29.tar db-old-2020-01-01.tar 'my site-2024-02-29.tar' > "$work/one"
: > "$work/nothing"
left() { LC_ALL=C ls -A > "$work/after"; LC_ALL=C sort "$work/before" | LC_ALL=C comm -23 - "$work/after" | cmp -s - "$1"; }
check "keeps two" prints "$work/two" 10 bash /app/prune.sh "$folder" 2
check "deletes just these" left "$work/two"
check "again" prints "$work/nothing" 10 bash /app/prune.sh "$folder" 2
check "keeps one" prints "$work/one" 10 bash /app/prune.sh "$folder" 1
cat "$work/two" "$work/one" | LC_ALL=C sort > "$work/all"
check "deletes just those" left "$work/all"
finish
