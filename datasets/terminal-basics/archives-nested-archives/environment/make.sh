set -e
mkdir -p /tmp/d/parts/left /tmp/d/parts/right /tmp/e && cd /tmp/d
echo alpha > parts/left/a.txt && echo beta > "parts/right/b c.txt" && tar --mtime=@0 -czf /tmp/e/one.tar.gz parts && rm -r parts
mkdir deep && echo gamma > deep/g.csv && echo '#!/bin/sh' > deep/run.sh && zip -qrX /tmp/e/two.zip deep && rm -r deep
cd /tmp/e && echo delta > delta.txt && tar --mtime=@0 -cf three.tar one.tar.gz two.zip delta.txt && rm one.tar.gz two.zip delta.txt
echo tango > t.txt && tar --mtime=@0 -czf four.tgz t.txt && rm t.txt
echo bravo > zip.txt && mkdir in && tar --mtime=@0 -cjf in/five.tar.bz2 four.tgz zip.txt && rm four.tgz zip.txt
echo top > top.md && zip -qrX /app/delivery.zip . && rm -rf /tmp/d /tmp/e
