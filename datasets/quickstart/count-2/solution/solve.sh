#!/bin/bash
cd /app
wc -l < jiha.txt > rice.csv
