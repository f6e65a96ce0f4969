#!/bin/bash
cd /app
mkdir junomu
