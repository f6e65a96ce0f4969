#!/bin/bash
set -e
find /app/docs -name '*.txt' -exec sed -i 's/[ \t\r]*$//' {} +
