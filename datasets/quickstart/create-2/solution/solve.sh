#!/bin/bash
cd /app
echo 'juce hici' > hune.txt
