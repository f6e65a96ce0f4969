#!/bin/bash
. /tests/lib.sh

readable /app
open_folder files
cd "$folder" || exit
mkdir Sub 'DIR two' && echo x > Sub/Inner.TXT
echo 1 > 'My File.TXT'; echo 2 > lower; echo 3 > -N.Txt; echo 4 > 'A*B'; echo 5 > A.txt; echo 6 > a.TXT; echo 7 > Notes; echo 8 > notes; echo 9 > .Hidden; echo 10 > '  Lead'
chmod -R a+rwX .
printf '%s\n' '  Lead ->   lead' '-N.Txt -> -n.txt' 'A*B -> a*b' 'A.txt -> a.txt' 'My File.TXT -> my file.txt' 'Notes: kept' 'a.TXT: kept' > "$work/said"
check "what it prints" prints "$work/said" 10 bash /app/rename.sh "$folder"
check "names" [ "$(LC_ALL=C ls -A | tr '\n' '|')" = '  lead|-n.txt|.Hidden|DIR two|Notes|Sub|a*b|a.TXT|a.txt|lower|my file.txt|notes|' ]
check "contents" [ "$(cat './  lead' ./-n.txt ./a.TXT ./a.txt ./Notes ./notes './my file.txt' | tr -d '\n')" = 10365781 ]
finish
