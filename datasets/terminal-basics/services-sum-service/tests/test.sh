#!/bin/bash
. /tests/lib.sh

readable /app
cd /
url=http://127.0.0.1:8100
json() { [ "$(ask "$url$2" | tr -d ' \n')" = "$1" ]; }
kind() { curl -s --noproxy '*' --max-time "$(within 10)" -o /dev/null -w '%{content_type}' "$url/sum?values=1" | grep -q '^application/json'; }
check "the port is open" serve 8100 bash /app/start.sh || finish
check "three values" json '200{"sum":6,"count":3}' '/sum?values=1,2,3'
check "one value" json '200{"sum":-5,"count":1}' '/sum?values=-5'
check "large values" json '200{"sum":100000000000000000001,"count":2}' '/sum?values=100000000000000000000,1'
check "comma as %2C" json '200{"sum":0,"count":2}' '/sum?values=-7%2C7'
check "content type" kind
for bad in '?values=' '' '?values=1,,2' '?values=1,x' '?values=1.5' '?value=1'; do
  check "refuses /sum$bad" json '400{"error":"values"}' "/sum$bad"
done
check "unknown path" json '404{"error":"path"}' '/total?values=1'
check "start page" json '404{"error":"path"}' /
finish
