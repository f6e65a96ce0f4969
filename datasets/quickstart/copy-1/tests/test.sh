#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'tulaki hoze' | cmp -s - /app/maba.md && cmp -s /app/hafi.log /app/maba.md; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
