#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'bema loso' | cmp -s - /app/titi.md && cmp -s /app/puru.log /app/titi.md; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
