#!/bin/bash
cd /app
chmod +x raro.sh
