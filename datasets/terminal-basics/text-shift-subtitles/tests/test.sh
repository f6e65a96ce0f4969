#!/bin/bash
. /tests/lib.sh

check "fixed.srt" same /app/fixed.srt /tests/expected.srt
finish
