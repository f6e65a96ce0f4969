#!/bin/bash
set -e
cd /app/menu
git merge winter > /dev/null || true
printf 'MENU\n\nbread: spelt\nwater: still\n\n\nsoup: leek\nmain: trout\ndessert: quince\n\n\ntea: ginger\n' > menu.txt
git add menu.txt
git commit -qm 'Merge winter'
