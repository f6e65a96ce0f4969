#!/bin/bash
set -e
cat > /app/show.sh << 'END'
echo $#
for argument in "$@"; do
  printf '[%s]\n' "$argument"
done
END
