#!/bin/bash
. /tests/lib.sh

# hashes are fixed: authors and dates are
check "commit and author" lines /app/answer.txt 2aec1d87f52e96af24ba223c075dfcea7b54143f Cem
finish
