#!/bin/bash
# Writes its process number to /app/run/worker.log when it starts, and "bye" when it was ended with SIGTERM.
echo "$$" >> /app/run/worker.log
trap 'sleep 0.5; echo bye >> /app/run/worker.log; exit 0' TERM
while :; do sleep 0.1; done
