#!/bin/bash
set -e
cd /tmp
tar --delete -f /app/site.tar old/draft.txt index.html
mkdir -p new/legal
cp /app/new-index.html new/index.html
cp /app/imprint.html new/legal/imprint.html
tar -rf /app/site.tar -C new index.html legal/imprint.html
