#!/bin/bash
echo "working $*"
sleep 2
exit 1
