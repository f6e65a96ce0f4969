#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'judi kamu' | cmp -s - /app/visoju.md && cmp -s /app/bino.txt /app/visoju.md; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
