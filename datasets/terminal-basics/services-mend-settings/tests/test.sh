#!/bin/bash
. /tests/lib.sh

readable /app
cd /
guard "start.sh and server.py unchanged" [ "$(cat /app/start.sh /app/server.py | cksum)" = "2178895272 855" ]
check "the port is open" serve 9000 bash /app/start.sh || finish
check "health" [ "$(ask http://127.0.0.1:9000/health)" = "200 ok" ]
check "greeting" [ "$(ask http://127.0.0.1:9000/greeting)" = "200 Welcome to the harbour" ]
check "nothing else" [ "$(ask http://127.0.0.1:9000/other)" = "404 unknown" ]
finish
