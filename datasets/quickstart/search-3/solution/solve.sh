#!/bin/bash
cd /app
grep zeba nedu.log > vilu.md
