#!/bin/bash
cd /app
cp puru.log titi.md
