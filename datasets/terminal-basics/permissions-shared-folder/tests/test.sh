#!/bin/bash
. /tests/lib.sh

about() { stat -c '%a %U %G' "$1"; }
members() { id -nG "$1" | tr ' ' '\n' | grep -qx crew; }
check "ana is a member" members ana
check "ben is a member" members ben
check "eve is none" not members eve
check "/srv/crew" [ "$(about /srv/crew)" = "2770 root crew" ]
check "/srv/crew/plans" [ "$(about /srv/crew/plans)" = "2770 eve crew" ]
check "log.txt" [ "$(about /srv/crew/log.txt)" = "660 ana crew" ]
check "plan b.txt" [ "$(about '/srv/crew/plans/plan b.txt')" = "660 eve crew" ]
check "content" lines '/srv/crew/plans/plan b.txt' plan
finish
