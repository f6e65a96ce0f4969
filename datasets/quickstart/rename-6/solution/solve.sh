#!/bin/bash
cd /app
mv miku.txt beda.log
