#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'vuve kani' 'milupo lofole' 'bibona novu' | cmp -s - /app/caha.log; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
