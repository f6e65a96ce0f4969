#!/bin/bash
set -e
cd /app/server
git log --reverse --format=%H -G'^TIMEOUT' -- settings.py | while read -r commit; do
  if ! git show "$commit:settings.py" | grep -q '^TIMEOUT = 30\b'; then
    git log -1 --format='%H%n%an' "$commit" > /app/answer.txt
    break
  fi
done
