#!/bin/bash
cd /app
cp hafi.log maba.md
