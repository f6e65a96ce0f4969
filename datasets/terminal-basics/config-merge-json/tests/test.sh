#!/bin/bash
. /tests/lib.sh

check "merged.json" same /app/merged.json /tests/expected.json
finish
