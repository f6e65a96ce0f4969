#!/bin/bash
set -e
groupadd crew
usermod -aG crew ana
usermod -aG crew ben
chgrp -R crew /srv/crew
find /srv/crew -type d -exec chmod 2770 {} +
find /srv/crew -type f -exec chmod 660 {} +
