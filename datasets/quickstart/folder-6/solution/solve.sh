#!/bin/bash
cd /app
mkdir jojuhu
