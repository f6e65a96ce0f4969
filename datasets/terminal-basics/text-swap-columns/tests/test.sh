#!/bin/bash
. /tests/lib.sh

check "columns and order" lines /app/by_city.csv Brno,Novak,Tomas Kyoto,Mori,Ken Kyoto,Tanaka,Aiko Lima,Ortega,Luis \
  Lima,Quispe,Rosa Oslo,Aas,Emil Oslo,Berg,Nora Oslo,Holt,Ida
finish
