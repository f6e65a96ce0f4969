#!/bin/bash
set -e
cd /app/recipes
git reset -q --soft HEAD~4
git commit -qm 'Add bread recipes'
