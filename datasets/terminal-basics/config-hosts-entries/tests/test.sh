#!/bin/bash
. /tests/lib.sh

check "hosts" lines /app/hosts '# the office' $'127.0.0.1\tlocalhost' '10.0.0.2 gate router   # was 10.0.0.21' '10.0.0.210 camera' \
  '10.0.0.30 desk scanner' '10.0.0.40 hall printer' '# 10.0.0.50 printer-archive' '10.0.0.50 archive'
finish
