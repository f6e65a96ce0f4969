#!/bin/bash
. /tests/lib.sh

check "passphrase" lines /app/passphrase.txt "$(echo ersryyncfzbx | tr a-z n-za-m)"
finish
