#!/bin/bash
cd /app
wc -l < memu.log > joge.csv
