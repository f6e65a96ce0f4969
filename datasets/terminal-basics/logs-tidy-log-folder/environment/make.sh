set -e
mkdir -p /app/logs && cd /app/logs
write() { yes "$1" | head -n "$2" > "$1.log"; }
write web-2024-06-30 5 && write web-2024-06-23 4 && write web-2024-06-22 7 && write web-2024-04-01 3 && write web-2024-03-31 2
write mail-in-2024-06-29 2 && write mail-in-2024-05-31 9 && gzip -n mail-in-2024-05-31.log
write mail-in-2023-12-31 4 && gzip -n mail-in-2023-12-31.log
write db-2024-01-01 6 && write old-2024-02-29 2 && gzip -n old-2024-02-29.log
echo notes > notes.log && echo x > web-2024-6-1.log && echo y > web-2024-03-31.log.bak && touch -d 2020-01-01 web-2024-06-30.log
