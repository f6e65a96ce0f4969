#!/bin/bash
cd /app
mkdir jemu
