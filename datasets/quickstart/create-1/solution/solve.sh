#!/bin/bash
cd /app
echo 'bafa hudo' > duhune.log
