#!/bin/bash
. /tests/lib.sh

cd /app/menu || exit
printf 'MENU\n\nbread: spelt\nwater: still\n\n\nsoup: leek\nmain: trout\ndessert: quince\n\n\ntea: ginger\n' > "$work/menu"
repo /app/menu show main:menu.txt > "$work/committed"
guard "winter stays" [ "$(repo /app/menu log -1 --format=%s winter)" = Shopping ]
check "a merge of both" [ "$(repo /app/menu log -1 --format=%P main | wc -w)" = 2 ]
check "its first parent" [ "$(repo /app/menu log -1 --format=%s main^1)" = Autumn ]
check "its second parent" [ "$(repo /app/menu rev-parse main^2)" = "$(repo /app/menu rev-parse winter)" ]
check "menu.txt as committed" cmp -s "$work/committed" "$work/menu"
check "menu.txt on disk" same menu.txt "$work/menu"
check "shopping.txt" lines shopping.txt 'leeks, apples, ginger'
check "nothing to report" [ "$(repo /app/menu status --porcelain; echo $?)" = 0 ]
finish
