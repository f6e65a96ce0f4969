#!/bin/bash
cd /app
chmod +x dina.sh
