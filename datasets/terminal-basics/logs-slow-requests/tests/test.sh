#!/bin/bash
. /tests/lib.sh

check "slow paths" lines /app/slow.csv path,requests,mean,max /search,3,534,900 /loan,2,381,501 /member/17,2,381,381 /books,3,251,381
finish
