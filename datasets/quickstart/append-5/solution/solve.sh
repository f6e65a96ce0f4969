#!/bin/bash
cd /app
echo 'roce dani' >> biku.log
