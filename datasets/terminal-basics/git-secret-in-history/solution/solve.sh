#!/bin/bash
set -e
cd /app/bot
export FILTER_BRANCH_SQUELCH_WARNING=1
git tag -d backup > /dev/null
git filter-branch -f --index-filter 'git rm -q --cached --ignore-unmatch keys.env' -- main dev > /dev/null 2>&1
git for-each-ref --format='%(refname)' refs/original | xargs -n1 git update-ref -d
