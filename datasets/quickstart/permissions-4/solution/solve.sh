#!/bin/bash
cd /app
chmod +x gumoce.sh
