#!/bin/bash
cd /app && exec python3 server.py settings.json
