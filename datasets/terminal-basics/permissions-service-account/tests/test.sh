#!/bin/bash
. /tests/lib.sh

about() { stat -c '%a %u %g' "$1"; }
owns() { stat -c '%u %g' "$@" | sort -u | tr '\n' ' '; }
check "user" [ "$(id -u courier) $(id -gn courier) $(getent group courier | cut -d: -f3)" = "1717 courier 1717" ]
check "home and shell" [ "$(getent passwd courier | cut -d: -f6,7)" = /srv/courier:/usr/sbin/nologin ]
check "home folder" [ "$(about /srv/courier)" = "700 1717 1717" ]
check "member of mail" grep -qx mail <(id -nG courier | tr ' ' '\n')
check "only of these" [ "$(id -nG courier | wc -w)" = 2 ]
check "courier.conf" [ "$(about /etc/courier/courier.conf)" = "640 0 1717" ]
check "its content" lines /etc/courier/courier.conf 'port = 25'
check "/etc/courier" [ "$(about /etc/courier)" = "750 0 1717" ]
check "spool" [ "$(about /var/spool/courier)" = "2770 1717 8" ]
check "old files" [ "$(cd /srv/old-courier && owns in in/m1 'in/m 2' link mine)" = "1717 1717 " ]
check "files of others" [ "$(owns /srv/old-courier/keep) $(owns /etc/hostname)" = "5 60  0 0 " ]
finish
