#!/bin/bash
set -e
cat > /app/greet.py << 'END'
import sys

for name in sys.argv[1:] or ["world"]:
    print(f"Hello, {name}!")
END
