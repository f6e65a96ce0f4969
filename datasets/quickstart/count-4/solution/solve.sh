#!/bin/bash
cd /app
wc -l < duheso.csv > mora.log
