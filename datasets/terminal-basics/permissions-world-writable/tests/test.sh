#!/bin/bash
. /tests/lib.sh

cd /app/site || exit
modes() { stat -c %a "$@" | tr '\n' ' '; }
guard "the rest" [ "$(modes tmp docs docs/a.txt cache/x)" = "1777 775 664 644 " ]
check "list" lines /app/writable.txt cache docs/drafts 'docs/drafts/b c.txt' index.html only run.sh tmp/y
check "modes" [ "$(modes cache docs/drafts 'docs/drafts/b c.txt' index.html only run.sh tmp/y)" = "775 2755 660 664 0 775 644 " ]
finish partial
