#!/bin/bash
cd /app
grep juma beju.log > rosagi.txt
