#!/bin/bash
. /tests/lib.sh

check "stock.tsv" same /app/stock.tsv /tests/expected.tsv
finish
