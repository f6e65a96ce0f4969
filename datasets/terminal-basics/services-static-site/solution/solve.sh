#!/bin/bash
set -e
cat > /app/start.sh << 'END'
#!/bin/bash
exec python3 -m http.server 8080 --bind 127.0.0.1 --directory /app/site
END
