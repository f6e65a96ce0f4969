#!/bin/bash
set -e
cd /app/shop
commit=$(git log --format='%H %s' | awk '$2 == "Release" && $3 == "1.0" { print $1 }')
git branch stable "$commit"
git tag -a v1.0 -m 'First release' "$commit"
