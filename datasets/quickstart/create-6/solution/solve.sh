#!/bin/bash
cd /app
echo 'bajo sohe' > fahe.md
