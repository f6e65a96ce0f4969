#!/bin/bash
. /tests/lib.sh

check "all.log" same /app/all.log /tests/expected.log
finish
