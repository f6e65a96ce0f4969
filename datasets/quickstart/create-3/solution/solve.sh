#!/bin/bash
cd /app
echo 'foto deni' > jevi.csv
