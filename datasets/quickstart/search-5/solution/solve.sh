#!/bin/bash
cd /app
grep fima zisega.csv > fivase.log
