#!/bin/bash
set -e
cd /app/price
for commit in $(git rev-list --reverse good..main); do
  said=$(git show "$commit:total.sh" | sh -s 3 250 2> /dev/null || true)
  if [ -n "$said" ] && [ "$said" != 750 ]; then
    echo "$commit" > /app/answer.txt
    break
  fi
done
