#!/bin/bash
cd /app
chmod +x dipa.sh
