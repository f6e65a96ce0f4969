#!/bin/bash
cd /app
wc -l < rulede.csv > vota.log
