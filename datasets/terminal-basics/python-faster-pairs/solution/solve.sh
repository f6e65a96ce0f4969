#!/bin/bash
set -e
cat > /app/pairs.py << 'END'
import sys
from collections import Counter

target, seen, count = int(sys.argv[2]), Counter(), 0
for line in open(sys.argv[1]):
    number = int(line)
    count += seen[target - number]
    seen[number] += 1
print(count)
END
