#!/bin/bash
set -e
cd /app/site
git revert --no-commit HEAD
git commit -qm 'Restore contact page'
