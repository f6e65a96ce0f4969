#!/bin/bash
set -e
cd /app
tr -d ' \t' < signups.txt | tr A-Z a-z | grep . | sort -u > emails.txt
