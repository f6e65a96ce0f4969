#!/bin/bash
. /tests/lib.sh

check "lines with TODO" lines /app/todos.txt main.py:5 main.py:10 tools/text.py:5 tools/text.py:18 web/views/list.py:2
finish
