#!/bin/bash
cd /app
echo 'gibe pogaku' > vaji.csv
