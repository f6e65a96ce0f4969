#!/bin/bash
# 1 when the task is done, else 0
reward=0
if printf '%s\n' 'juce hici' | cmp -s - /app/hune.txt; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
