#!/bin/bash
cd $1
for f in `ls`; do
  new=$(echo $f | tr A-Z a-z)
  mv $f $new
  echo $f "->" $new
done
