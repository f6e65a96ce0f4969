#!/bin/bash
. /tests/lib.sh

modes() { (cd /app && stat -c %a "$@" | tr '\n' ' '); }
guard "other files" [ "$(modes keys/README keys/web.key.txt)" = "640 604 " ]
check "folder" [ "$(modes keys)" = "700 " ]
check "keys" [ "$(modes keys/web.key keys/mail.key keys/backup.key)" = "600 600 600 " ]
check "public keys" [ "$(modes keys/web.pub keys/mail.pub keys/backup.pub)" = "644 644 644 " ]
finish
