#!/bin/bash
set -e
cd /app/project
git init -q -b main
printf '*.log\nbuild/\n' > .gitignore
git add .
git commit -qm 'Initial import'
