#!/bin/bash
. /tests/lib.sh

check "ten most frequent words" same /app/top.txt /tests/expected.txt
finish
