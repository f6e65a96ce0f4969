#!/bin/bash
exec python3 /app/echo.py
