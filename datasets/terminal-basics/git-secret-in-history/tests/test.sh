#!/bin/bash
. /tests/lib.sh

git="repo /app/bot"
authors() { $git log --format='%s/%an/%aI' "$1" | tr '\n' ','; }
at() { $git log --format='%H %s' "$1" | grep -F " $2" | cut -d' ' -f1; }
main="Key from the environment/Ana/2024-06-16T10:00:00+00:00,New key, shorter greeting/Bo/2024-06-15T10:00:00+00:00,"
old="Readme/Ana/2024-06-13T10:00:00+00:00,Read the key/Bo/2024-06-12T10:00:00+00:00,Say hello/Ana/2024-06-11T10:00:00+00:00,"
check "main has its commits" [ "$(authors main)" = "$main$old" ]
check "dev has its commits" [ "$(authors dev)" = "Beep/Cleo/2024-06-14T10:00:00+00:00,$old" ]
check "no trace of the file" [ -z "$($git log --all --format=%H -- keys.env; $git rev-list --objects --all | grep keys.env)" ]
check "files now" [ "$($git ls-tree -r --name-only main | tr '\n' ' ')" = "README bot.py " ]
check "files of dev" [ "$($git ls-tree -r --name-only dev | tr '\n' ' ')" = "README beep.py bot.py " ]
check "bot.py in between" [ "$($git show "$(at main 'Read the key'):bot.py")" = 'print("hello", open("keys.env").read())' ]
check "bot.py on main" [ "$($git show main:bot.py)" = 'import os; print("hi", os.environ["KEY"])' ]
check "main is checked out" [ "$($git symbolic-ref HEAD) $($git status --porcelain)" = "refs/heads/main " ]
finish
