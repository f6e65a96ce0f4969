#!/bin/bash
set -e
cat > /app/order.py << 'END'
import heapq
import sys

needs = {}
for line in open(sys.argv[1]):
    if line.strip() and not line.startswith("#"):
        part, _, others = line.partition(":")
        needs.setdefault(part.strip(), set()).update(others.split())
        for other in others.split():
            needs.setdefault(other, set())
wanted_by = {part: [] for part in needs}
for part, others in needs.items():
    for other in others:
        wanted_by[other].append(part)
missing = {part: len(others) for part, others in needs.items()}
ready = [part for part, count in missing.items() if count == 0]
heapq.heapify(ready)
order = []
while ready:
    order.append(heapq.heappop(ready))
    for part in wanted_by[order[-1]]:
        missing[part] -= 1
        if missing[part] == 0:
            heapq.heappush(ready, part)
if len(order) < len(needs):
    print("circle", file=sys.stderr)
    sys.exit(3)
print("".join(f"{part}\n" for part in order), end="")
END
