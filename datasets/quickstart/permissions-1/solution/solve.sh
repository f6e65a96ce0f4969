#!/bin/bash
cd /app
chmod +x vori.sh
