#!/bin/bash
. /tests/lib.sh

check "app.env" same /app/app.env /tests/expected.env
finish
