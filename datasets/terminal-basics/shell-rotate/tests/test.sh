#!/bin/bash
. /tests/lib.sh

readable /app
open_folder logs
cd "$folder" || exit
echo 0 > 'my app.log'; echo 1 > 'my app.log.1'
for n in 2 3 5 9 10 11; do echo "$n" | gzip -nc > "my app.log.$n.gz"; done
echo z > 'my app.log.07.gz'; echo y > 'my app.log.3'; echo x > 'my app.log.gz'; echo w > 'my app.log.4.gz.old'; echo v > 'my appxlog.2.gz'
chmod -R a+rwX . && chown -R nobody:nogroup . && chmod 604 'my app.log'
: > "$work/nothing"
files() { LC_ALL=C ls -A | tr '\n' '|'; }
hold() { for n in "$@"; do gzip -dc "my app.log.${n%:*}.gz" 2> /dev/null | grep -qx "${n#*:}" || return 1; done; }
check "prints nothing" prints "$work/nothing" 10 bash /app/rotate.sh "$folder/my app.log" 11
check "names" [ "$(files)" = "my app.log|my app.log.07.gz|my app.log.1|my app.log.10.gz|my app.log.11.gz|my app.log.2.gz|my app.log.3|my app.log.3.gz|my app.log.4.gz|my app.log.4.gz.old|my app.log.6.gz|my app.log.gz|my appxlog.2.gz|" ]
check "contents" hold 2:1 3:2 4:3 6:5 10:9 11:10
check "FILE.1" lines 'my app.log.1' 0
check "an empty file, same mode" [ "$(stat -c '%a %s' 'my app.log')" = "604 0" ]
before=$(files)
check "empty: nothing to do" prints "$work/nothing" 10 bash /app/rotate.sh "$folder/my app.log" 2
check "nothing happened" [ "$(files)" = "$before" ]
check "not there: nothing to do" prints "$work/nothing" 10 bash /app/rotate.sh "$folder/none.log" 2
echo new > 'my app.log'
check "again" prints "$work/nothing" 10 bash /app/rotate.sh "$folder/my app.log" 2
check "keeps two" [ "$(files)" = "my app.log|my app.log.07.gz|my app.log.1|my app.log.2.gz|my app.log.3|my app.log.4.gz.old|my app.log.gz|my appxlog.2.gz|" ]
check "the right two" lines 'my app.log.1' new
check "with their contents" hold 2:0
echo newer > 'my app.log'
check "once more" prints "$work/nothing" 10 bash /app/rotate.sh "$folder/my app.log" 1
check "keeps one" [ "$(files)" = "my app.log|my app.log.07.gz|my app.log.1|my app.log.3|my app.log.4.gz.old|my app.log.gz|my appxlog.2.gz|" ]
finish
