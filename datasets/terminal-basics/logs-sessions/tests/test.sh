#!/bin/bash
. /tests/lib.sh

check "sessions" same /app/sessions.csv /tests/expected.csv
finish
