#!/bin/bash
cd /app
mv nitu.log fosi.md
