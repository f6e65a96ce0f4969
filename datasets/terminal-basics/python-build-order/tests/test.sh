#!/bin/bash
. /tests/lib.sh

readable /app
chmod 755 "$work"
printf 'car: wheel motor seat\nwheel: rubber steel\nmotor: steel\nseat:\nmotor: copper\n' > "$work/car"
printf '%s\n' copper rubber seat steel motor wheel car > "$work/car.order"
printf 'z:\na: z\n\n#b: b\nm: a a\nb: z\nc:\n' > "$work/late"
printf '%s\n' c z a b m > "$work/late.order"
{ echo 'p0000:'; seq -f 'p%04.0f' 1 3000 | awk '{ printf "%s: p%04d\n", $1, NR - 1 }'; } | sort -r > "$work/long"
seq -f 'p%04.0f' 0 3000 > "$work/long.order"
printf 'a: b\nb: c\nc: a\nd:\n' > "$work/circle"
printf 'self: self\nx:\n' > "$work/self"
: > "$work/empty"
circle() {
  run 20 python3 /app/order.py "$work/$1" > "$work/out" 2> "$work/errors"
  [ $? = 3 ] && [ ! -s "$work/out" ] && grep -qx circle "$work/errors"
}
for name in car late long; do
  check "$name" prints "$work/$name.order" 20 python3 /app/order.py "$work/$name"
done
check "nothing" prints "$work/empty" 20 python3 /app/order.py "$work/empty"
check "three in a circle" circle circle
check "a part that needs itself" circle self
finish
