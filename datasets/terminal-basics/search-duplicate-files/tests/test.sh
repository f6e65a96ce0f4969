#!/bin/bash
. /tests/lib.sh

check "sets of equal files" lines /app/duplicates.txt '2023/a.jpg = 2024/sea/z.jpg = new ones/img 1.jpg' \
  '2023/c.jpg = 2024/c.jpg' '2024/sea/none.jpg = empty.jpg'
finish
