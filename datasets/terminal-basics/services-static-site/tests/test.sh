#!/bin/bash
. /tests/lib.sh

readable /app
cd /
echo "fresh $RANDOM$RANDOM" > /app/site/fresh.txt && chmod 644 /app/site/fresh.txt
check "the port is open" serve 8080 bash /app/start.sh || finish
check "start page" [ "$(ask http://127.0.0.1:8080/)" = "200 <h1>The harbour library</h1>" ]
check "a file in a folder" [ "$(ask http://127.0.0.1:8080/books/tides.txt)" = "200 Tides and currents, shelf 4" ]
check "a new file" [ "$(ask http://127.0.0.1:8080/fresh.txt)" = "200 $(cat /app/site/fresh.txt)" ]
check "nothing else" grep -qv '^200' <(ask --path-as-is http://127.0.0.1:8080/../private.txt; echo)
check "in the foreground" test -d "/proc/$server"
finish
