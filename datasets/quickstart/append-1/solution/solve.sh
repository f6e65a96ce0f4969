#!/bin/bash
cd /app
echo 'bibona novu' >> caha.log
