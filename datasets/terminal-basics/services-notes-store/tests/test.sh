#!/bin/bash
. /tests/lib.sh

readable /app
rm -rf /app/data && mkdir -m 777 /app/data
cd /
url=http://127.0.0.1:8200
says() { [ "$(ask "${@:2}" | tr '\n' ,)" = "$1" ]; }
status() { [ "$(curl -s --noproxy '*' --max-time "$(within 10)" -o /dev/null -w '%{http_code}' "${@:2}")" = "$1" ]; }
bytes() { curl -s --noproxy '*' --max-time "$(within 10)" "$url/notes/bytes" | cmp -s - "$work/bytes"; }
printf 'a\0b\r\n\377\n\n' > "$work/bytes"
head -c 1001 /dev/zero > "$work/large"
check "the port is open" serve 8200 bash /app/start.sh || finish
check "no notes" says '200 ' "$url/notes"
check "new" status 201 -X PUT --data-binary first "$url/notes/plan"
check "replaced" status 200 -X PUT --data-binary second "$url/notes/plan"
check "content" says '200 second' "$url/notes/plan"
check "any bytes" status 201 -X PUT --data-binary "@$work/bytes" "$url/notes/bytes"
check "are kept" bytes
check "empty" status 201 -X PUT --data-binary '' "$url/notes/0empty"
check "names" says '200 0empty,bytes,plan,' "$url/notes"
check "too large" status 413 -X PUT --data-binary "@$work/large" "$url/notes/plan"
check "changed nothing" says '200 second' "$url/notes/plan"
check "not there" status 404 "$url/notes/none"
check "other paths" status 404 "$url/other"
for name in Plan plan.txt ..%2Fx abcdefghijklmnopqrstu 'a%20b'; do
  check "name $name" status 400 -X PUT --data-binary x "$url/notes/$name"
done
check "longest name" status 201 -X PUT --data-binary x "$url/notes/abcdefghijklmnopqrst"
check "deleted" status 204 -X DELETE "$url/notes/abcdefghijklmnopqrst"
check "once" status 404 -X DELETE "$url/notes/abcdefghijklmnopqrst"
check "last words" status 200 -X PUT --data-binary third "$url/notes/plan"
end_all
check "starts again" serve 8200 bash /app/start.sh || finish
check "names after that" says '200 0empty,bytes,plan,' "$url/notes"
check "content after that" says '200 third' "$url/notes/plan"
check "bytes after that" bytes
finish
