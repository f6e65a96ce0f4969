#!/bin/bash
. /tests/lib.sh

git="repo /app/garden"
printf 'north: trees\n\n\n\nsouth: beds\n' > "$work/plan"
guard "origin/main" [ "$($git rev-parse origin/main)" = 5acc8ea3403f192e2ef6330296160dcab35e68fc ]
check "main is back" [ "$($git rev-parse main)" = 5acc8ea3403f192e2ef6330296160dcab35e68fc ]
check "beds starts at origin/main" [ "$($git rev-parse beds~2)" = 5acc8ea3403f192e2ef6330296160dcab35e68fc ]
check "its commits" [ "$($git log -2 --format='%s/%an' beds | tr '\n' ,)" = "A bed for leeks/Cleo,Beds for beans and peas/Bo," ]
check "first change" [ "$($git diff --name-status beds~2 beds~1 | tr '\t\n' ' ,')" = "A beds.txt," ]
check "second change" [ "$($git diff --name-status beds~1 beds | tr '\t\n' ' ,')" = "M beds.txt," ]
check "beds.txt" [ "$($git show beds:beds.txt | tr '\n' ,)" = beans,peas,leeks, ]
check "beds is checked out" [ "$($git symbolic-ref HEAD)" = refs/heads/beds ]
check "plan.txt is changed" same /app/garden/plan.txt "$work/plan"
check "and only that" [ "$($git status --porcelain --untracked-files=no)" = " M plan.txt" ]
finish
