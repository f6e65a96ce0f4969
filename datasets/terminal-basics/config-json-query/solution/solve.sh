#!/bin/bash
set -e
jq -r '.[] | select(.memory_gb >= 16 and (.tags | index("linux"))) | .name' /app/inventory.json | sort > /app/names.txt
