#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'fuve dulobi' | cmp -s - /app/bacivi.log && [ ! -e /app/bovi.md ]; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
