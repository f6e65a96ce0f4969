#!/bin/bash
cd /app
mkdir vepuhe
