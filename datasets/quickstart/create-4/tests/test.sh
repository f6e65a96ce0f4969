#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'gibe pogaku' | cmp -s - /app/vaji.csv; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
