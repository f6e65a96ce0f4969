#!/bin/bash
. /tests/lib.sh

for id in k01 k02 k17; do
  check "letter $id" same "/app/letters/$id.txt" "/tests/expected/$id.txt"
done
finish partial
