#!/bin/bash
set -e
cat > /app/average.py << 'END'
import sys

numbers = [float(line) for line in sys.stdin if line.strip()]
if not numbers:
    print("no numbers")
    sys.exit(1)
print(f"{sum(numbers) / len(numbers):.2f}")
END
