#!/bin/bash
. /tests/lib.sh

check "counts" lines /app/types.txt 'c 6' 'h 2' 'html 1' 'in 1' 'json 1' 'md 2' 'png 3'
finish
