#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'badijo letu' | cmp -s - /app/kageze.md && cmp -s /app/jafi.txt /app/kageze.md; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
