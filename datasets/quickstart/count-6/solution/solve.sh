#!/bin/bash
cd /app
wc -l < bisi.log > cida.log
