#!/bin/bash
set -e
sed -i '/^\[server\]$/,/^\[server\.backup\]$/ { /^\[server\.backup\]/! s/^port = 8080$/port = 9443/ }' /app/service.ini
