#!/bin/bash
cd /app
echo 'loru zisu' >> tibu.txt
