#!/bin/bash
. /tests/lib.sh

check "the whole file" [ "$(sha256sum < /app/whole.tar.gz | cut -d' ' -f1)" = c35ba45c4b6d1e9f4979d1433c9b28c9402a42ebec09d5f0e9815d7435bdfff8 ]
yes 'deep water' | head -40 > "$work/north"
yes 'sand bank' | head -9 > "$work/south"
check "north.txt" same /app/out/chart/north.txt "$work/north"
check "south.txt" same /app/out/chart/south.txt "$work/south"
check "log" lines /app/out/log calm
check "parts that are left" [ "$(cd /app/parts && ls -A | LC_ALL=C sort | tr '\n' ' ')" = "1679091c 45c48cce 6512bd43 6974ce5a 8f14e45f a3c65c29 a87ff679 c4ca4238 c81e728d cfcd2084 d3d94468 e4da3b7f " ]
check "their contents" [ "$(cd /app/parts && cat * | wc -c)" = "$(wc -c < /app/whole.tar.gz)" ]
finish
