#!/bin/bash
set -e
cd /app/src
grep -rn --include='*.py' TODO . | sed 's|^\./||' | cut -d: -f1,2 | sort -t: -k1,1 -k2,2n > /app/todos.txt
