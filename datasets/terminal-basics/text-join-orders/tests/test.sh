#!/bin/bash
. /tests/lib.sh

check "report" lines /app/report.csv name,orders,cents 'Delta Works,2,12450' 'Blue Door,1,4740' 'Harbour Inn,2,4740' \
  'Old Mill,3,4740' 'North Star,1,350' Acorn,0,0
finish
