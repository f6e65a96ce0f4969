#!/bin/bash
. /tests/lib.sh

cd /app/logs || exit
guard "other files" [ "$(cat notes.log web-2024-6-1.log web-2024-03-31.log.bak | tr '\n' ,)" = notes,x,y, ]
check "files" [ "$(LC_ALL=C ls -A | tr '\n' ' ')" = "mail-in-2024-05-31.log.gz mail-in-2024-06-29.log notes.log web-2024-03-31.log.bak web-2024-04-01.log.gz web-2024-06-22.log.gz web-2024-06-23.log web-2024-06-30.log web-2024-6-1.log " ]
check "compressed" [ "$(gzip -dc web-2024-06-22.log.gz web-2024-04-01.log.gz mail-in-2024-05-31.log.gz 2> /dev/null | sort | uniq -c | tr -s ' \n' ' ')" = " 9 mail-in-2024-05-31 3 web-2024-04-01 7 web-2024-06-22 " ]
check "summary" lines /app/summary.txt 'mail-in 2 '$((9 * 19 + 2 * 19)) 'web 4 '$((19 * 15))
finish
