#!/bin/bash
cd /app
mv sali.csv sefo.md
