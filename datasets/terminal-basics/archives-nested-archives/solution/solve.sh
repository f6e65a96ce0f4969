#!/bin/bash
set -e
mkdir -p /app/out
unpack() {
  local folder
  folder=$(mktemp -d)
  case $1 in
    *.zip) unzip -q "$1" -d "$folder" ;;
    *) tar -xf "$1" -C "$folder" ;;
  esac
  find "$folder" -type f | while IFS= read -r file; do
    case $file in
      *.zip | *.tar | *.tar.gz | *.tgz | *.tar.bz2) unpack "$file" ;;
      *) mv "$file" /app/out/ ;;
    esac
  done
}
unpack /app/delivery.zip
