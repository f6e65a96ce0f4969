#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'vami lale' 'siheto hapali' 'finefo fiso' | cmp -s - /app/hema.txt; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
