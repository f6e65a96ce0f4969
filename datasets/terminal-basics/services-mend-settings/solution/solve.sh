#!/bin/bash
set -e
cat > /app/settings.json << 'END'
{"port": 9000, "greeting": "/app/text/greeting.txt", "paths": {"/health": "health", "/greeting": "greeting"}}
END
