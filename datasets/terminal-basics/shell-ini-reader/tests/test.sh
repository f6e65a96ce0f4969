#!/bin/bash
. /tests/lib.sh

readable /app
cp /tests/a.ini "$work/a.ini" && chmod 755 "$work"
ini() { run 10 sh /app/ini.sh "$@" 2> /dev/null; }
get() { ini get "$work/a.ini" "$1" "$2" > "$work/out" && lines "$work/out" "$3"; }
none() { ini get "$work/a.ini" "$1" "$2" > "$work/out"; [ $? = 1 ] && [ ! -s "$work/out" ]; }
list() { ini "${@:2}" > "$work/out" && printf "$1" | cmp -s - "$work/out"; }
check "the last one wins, over sections" get 'first one' a.b 7
check "a dot is a dot" get 'first one' axb 2
check "spaces" get 'first one' 'key with spaces' 'a value  with   spaces'
check "empty value" get 'first one' empty ''
check "equals signs" get 'first one' eq 'x = y == z'
check "brackets in a value" get Second a.b 'last [not a section]'
check "backslashes" get Second backslash 'C:\new\table \\ &'
check "part of a name" get first a.b other
check "nothing is run" get last x '$HOME `id` %s'
check "no such key" none Second eq
check "outside" none Second stray
check "upper and lower case" none second a.b
check "keys" list 'a.b\naxb\nkey with spaces\nempty\neq\nlate\n' keys "$work/a.ini" 'first one'
check "no keys" list '' keys "$work/a.ini" empty
check "sections" list 'first one\nSecond\nfirst\nempty\nlast\n' sections "$work/a.ini"
check "no Python, no Perl" not grep -qE 'python|perl' /app/ini.sh
finish
