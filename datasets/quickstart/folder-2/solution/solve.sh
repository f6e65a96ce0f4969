#!/bin/bash
cd /app
mkdir bijapi
