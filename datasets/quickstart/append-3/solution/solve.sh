#!/bin/bash
cd /app
echo 'mama seze' >> voziza.log
