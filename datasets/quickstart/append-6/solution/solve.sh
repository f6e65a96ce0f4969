#!/bin/bash
cd /app
echo 'basoli lanijo' >> jorupa.log
