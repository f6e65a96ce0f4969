#!/bin/bash
cd /app
grep zima dute.log > kagiti.txt
