#!/bin/bash
. /tests/lib.sh

check "statuses by hour" same /app/table.csv /tests/expected.csv
finish
