#!/bin/bash
set -e
cd /app
tar -xzOf bundle.tar.gz ./docs/readme.txt > readme.txt
