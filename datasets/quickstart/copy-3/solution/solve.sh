#!/bin/bash
cd /app
cp jafi.txt kageze.md
