#!/bin/bash
cd /app
chmod +x hujasa.sh
