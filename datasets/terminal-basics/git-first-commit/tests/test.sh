#!/bin/bash
. /tests/lib.sh

cd /app/project || exit
guard "files are kept" test -s build/out/main.o -a -s src/run.log -a -s src/main.c
printf '%s\n' .gitignore Makefile notes/list.txt src/main.c > "$work/files"
repo /app/project ls-tree -r --name-only main > "$work/tree"
check "one commit on main" [ "$(repo /app/project log --format=%s main)" = "Initial import" ]
check "its files" cmp -s "$work/tree" "$work/files"
check "nothing to report" [ "$(repo /app/project status --porcelain; echo $?)" = 0 ]
check "main is checked out" [ "$(repo /app/project symbolic-ref HEAD)" = refs/heads/main ]
finish
