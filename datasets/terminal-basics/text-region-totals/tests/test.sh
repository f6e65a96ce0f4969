#!/bin/bash
. /tests/lib.sh

check "totals by region" same /app/totals.csv /tests/expected.csv
finish
