#!/bin/bash
cd /app
wc -l < niho.log > vovu.log
