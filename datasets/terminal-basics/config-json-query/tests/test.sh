#!/bin/bash
. /tests/lib.sh

check "names" lines /app/names.txt avocet heron stork
finish
