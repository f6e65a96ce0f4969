#!/bin/bash
cd /app
cp mada.log mujura.log
