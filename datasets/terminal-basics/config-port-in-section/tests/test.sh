#!/bin/bash
. /tests/lib.sh

check "service.ini" same /app/service.ini /tests/expected.ini
finish
