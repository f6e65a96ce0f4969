#!/bin/bash
. /tests/lib.sh

check "three addresses" lines /app/top.txt '10.0.0.70 31' '192.168.4.12 27' '10.0.0.7 23'
finish
