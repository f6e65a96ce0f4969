#!/bin/bash
set -e
mkdir /tmp/photos
cd /tmp/photos
TZ=UTC unzip -q /app/photos.zip -x '*.db'
tar -cJf /app/photos.tar.xz *
