#!/bin/bash
. /tests/lib.sh

guard "main is checked out" [ "$(repo /app/price symbolic-ref HEAD)" = refs/heads/main ]
guard "main" [ "$(repo /app/price rev-list --count main) $(repo /app/price log -1 --format=%s main)" = "52 Version 52" ]
check "first bad commit" lines /app/answer.txt 6ba0df8f1079a350ddd0400d994c809ac9bce8c1
finish
