#!/bin/bash
cd /app
echo 'finefo fiso' >> hema.txt
