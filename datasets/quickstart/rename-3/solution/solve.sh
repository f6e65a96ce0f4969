#!/bin/bash
cd /app
mv piku.txt pone.md
