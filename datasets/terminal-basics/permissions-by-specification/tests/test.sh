#!/bin/bash
. /tests/lib.sh

about() { (cd /srv/site && stat -c '%a %U %G %n' "$@"); }
of() { [ "$(about "$2")" = "$1 $2" ]; }
guard "private/other.db" of "600 root root" private/other.db
guard "upload/list" of "644 daemon daemon" upload/list
guard "scripts" of "711 root root" scripts
check "." of "755 root www-data" .
check "private" of "750 root www-data" private
check "private/users.db" of "640 www-data www-data" private/users.db
check "upload" of "2775 games staff" upload
check "upload/list of files.txt" of "664 games staff" "upload/list of files.txt"
check "scripts/send mail" of "500 nobody nogroup" "scripts/send mail"
finish
