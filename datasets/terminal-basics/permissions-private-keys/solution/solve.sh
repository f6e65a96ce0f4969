#!/bin/bash
set -e
cd /app/keys
chmod 700 .
chmod 600 *.key
chmod 644 *.pub
