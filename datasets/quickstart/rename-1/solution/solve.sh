#!/bin/bash
cd /app
mv bovi.md bacivi.log
