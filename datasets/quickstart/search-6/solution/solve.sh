#!/bin/bash
cd /app
grep miko kalo.md > cate.log
