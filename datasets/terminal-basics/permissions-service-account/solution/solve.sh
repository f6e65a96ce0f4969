#!/bin/bash
set -e
groupadd -g 1717 courier
useradd -u 1717 -g courier -G mail -d /srv/courier -s /usr/sbin/nologin -M courier
install -d -m 700 -o courier -g courier /srv/courier
chown root:courier /etc/courier /etc/courier/courier.conf
chmod 750 /etc/courier
chmod 640 /etc/courier/courier.conf
install -d -m 2770 -o courier -g mail /var/spool/courier
find /srv/old-courier -uid 999 -exec chown -h courier:courier {} +
