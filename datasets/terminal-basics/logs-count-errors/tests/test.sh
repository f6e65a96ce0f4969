#!/bin/bash
. /tests/lib.sh

check "errors by date" lines /app/errors.txt '2024-06-01 3' '2024-06-02 0' '2024-06-03 1' '2024-06-04 0'
finish
