#!/bin/bash
set -e
cd /app
sed -i -e '/^10\.0\.0\.21 /d' -e '/^10\.0\.0\.30 /s/ printer\b//' -e '/^10\.0\.0\.40 /s/$/ printer/' hosts
echo '10.0.0.50 archive' >> hosts
