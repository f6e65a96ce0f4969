#!/bin/bash
. /tests/lib.sh

check "the line that wins" lines /app/answer.txt 9-local.conf:3:175
finish
