#!/bin/bash
. /tests/lib.sh

cd /app/links || exit
printf '%s\n' bin bin/data 'bin/the guide' share share/all share/data.txt share/doc share/doc/guide share/guide > "$work/left"
find . -mindepth 1 -printf '%P\n' | sort > "$work/found"
guard "files are kept" lines share/data.txt data
guard "links are kept" lines 'bin/the guide' guide
check "list of broken links" lines /app/broken.txt bin/again bin/gone share/doc/abs share/loop
check "only broken links are gone" cmp -s "$work/found" "$work/left"
finish partial
