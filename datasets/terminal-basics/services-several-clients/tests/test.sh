#!/bin/bash
. /tests/lib.sh

readable /app
guard "start.sh unchanged" lines /app/start.sh '#!/bin/bash' 'exec python3 /app/echo.py'
clients() { [ "$(timeout "$(within 30)" python3 /tests/clients.py 2>&1)" = "all right 42" ]; }
check "the port is open" serve 7100 bash /app/start.sh || finish
check "clients" clients
check "clients again" clients
finish
