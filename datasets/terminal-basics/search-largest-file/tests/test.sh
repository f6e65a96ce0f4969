#!/bin/bash
. /tests/lib.sh

check "largest file" lines /app/largest.txt /app/store/.cache/index
finish
