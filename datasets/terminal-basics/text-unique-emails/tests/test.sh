#!/bin/bash
. /tests/lib.sh

check "distinct addresses" same /app/emails.txt /tests/expected.txt
finish
