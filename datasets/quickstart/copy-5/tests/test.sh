#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'jusa geko' | cmp -s - /app/mujura.log && cmp -s /app/mada.log /app/mujura.log; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
