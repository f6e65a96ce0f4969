#!/bin/bash
cd /app
cp bino.txt visoju.md
