#!/bin/bash
cd /app
mv dafena.log nitejo.csv
