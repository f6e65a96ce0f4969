#!/bin/bash
. /tests/lib.sh

cd /app/site || exit
log=$(repo /app/site log --format=%s main | tr '\n' ,)
check "history" [ "$log" = "Restore contact page,Clean up,Contact,Home," ]
check "committed files" [ "$(repo /app/site rev-parse 'main^{tree}')" = "$(repo /app/site rev-parse 'main~2^{tree}')" ]
check "files on disk" lines pages/contact.html '<h1>Contact</h1>ask at the harbour'
check "nothing to report" [ "$(repo /app/site status --porcelain; echo $?)" = 0 ]
finish
