#!/bin/bash
. /tests/lib.sh

cd /app/tools || exit
guard "folders" [ "$(stat -c %a bin 'more tools' | tr '\n' ' ')" = "750 755 " ]
guard "contents" [ "$(cat bin/run bin/list.sh 'more tools/read me.txt' | cksum)" = "$(printf '#!/bin/sh\necho run\necho no first line\n#!/bin/bash\n' | cksum)" ]
check "scripts" [ "$(stat -c %a bin/run 'more tools/x/count.py' 'more tools/read me.txt' | tr '\n' ' ')" = "755 755 755 " ]
check "other files" [ "$(stat -c %a bin/list.sh bin/space bin/empty 'more tools/late.sh' | tr '\n' ' ')" = "644 644 644 644 " ]
finish
