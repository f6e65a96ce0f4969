#!/bin/bash
cd /app
echo 'risopo dahu' > joku.csv
