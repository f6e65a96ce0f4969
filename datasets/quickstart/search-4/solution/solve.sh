#!/bin/bash
cd /app
grep tulo datu.csv > fevucu.md
