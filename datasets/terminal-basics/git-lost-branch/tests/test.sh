#!/bin/bash
. /tests/lib.sh

guard "main" [ "$(repo /app/atlas log --format=%s main | tr '\n' ,)" = "Add a legend,Start the atlas," ]
guard "main is checked out" [ "$(repo /app/atlas symbolic-ref HEAD)" = refs/heads/main ]
check "branch maps" [ "$(repo /app/atlas rev-parse refs/heads/maps)" = a0b5075e634c814181c9d905645b0078fa6fa1ff ]
finish
