#!/bin/bash
cd /app
cp dinu.csv bebo.log
