#!/bin/bash
# 1 when the task is done, else 0
reward=0
if [ "$(cat /app/vovu.log)" = 6 ]; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
