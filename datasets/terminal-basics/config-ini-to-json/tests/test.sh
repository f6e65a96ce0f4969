#!/bin/bash
. /tests/lib.sh

readable /app
run 10 jq -S . /app/settings.json > "$work/settings" 2> /dev/null
check "settings.json" same "$work/settings" /tests/expected.json
check "problems.txt" lines /app/problems.txt 'mail.urgent: maybe' 'paths.colour: no rule' 'server.start: 2h30m' 'server.workers: four'
finish
