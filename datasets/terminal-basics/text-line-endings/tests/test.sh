#!/bin/bash
. /tests/lib.sh

cd /app/docs || exit
printf 'left \r\nright \r\n' > "$work/keep"
printf 'a,b \r\n1,2 \r\n' > "$work/table"
guard "keep.dat unchanged" same keep.dat "$work/keep"
guard "table.csv unchanged" same old/table.csv "$work/table"
guard "plain.txt unchanged" lines plain.txt 'No change needed.' 'Second line.'
check "hours.txt" lines hours.txt 'Opening hours' '' '  Monday: 9 to 5' '  Friday: 9 to 1'
check "old/tools.txt" lines old/tools.txt 'Tools:' $'\thammer' $'\tsaw'
finish partial
