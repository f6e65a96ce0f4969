#!/bin/bash
cd /app
mkdir tegu
