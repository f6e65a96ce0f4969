#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'suva jega' 'luzeka tocu' 'basoli lanijo' | cmp -s - /app/jorupa.log; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
