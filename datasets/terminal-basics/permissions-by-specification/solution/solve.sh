#!/bin/bash
set -e
cd /srv/site
grep -v '^#' /app/spec.txt | while read -r mode owner group path; do
  chown "$owner:$group" "$path"
  chmod "$mode" "$path"
done
