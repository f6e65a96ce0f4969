#!/bin/bash
. /tests/lib.sh

git="repo /app/recipes"
check "messages" [ "$($git log --format=%s main | tr '\n' ,)" = "Add bread recipes,Add soup,Start," ]
check "earlier commits" [ "$($git rev-parse main^)" = db1568c3db0059c63fdda105cb2a6e3dd6e4d25d ]
check "the same files" [ "$($git rev-parse 'main^{tree}')" = babd93e23578090f43d596016d1e7b8419ecaf0b ]
check "nothing to report" [ "$($git status --porcelain; echo $?)" = 0 ]
check "main is checked out" [ "$($git symbolic-ref HEAD)" = refs/heads/main ]
finish
