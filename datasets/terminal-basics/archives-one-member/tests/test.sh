#!/bin/bash
. /tests/lib.sh

guard "the archive is there" grep -qx ./src/main.c <(tar -tzf /app/bundle.tar.gz)
check "readme.txt" lines /app/readme.txt 'Read me first.' 'Then the rest.'
check "nothing else" [ "$(ls -A /app | tr '\n' ' ')" = "bundle.tar.gz readme.txt " ]
finish
