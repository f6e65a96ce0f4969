#!/bin/bash
. /tests/lib.sh

cd /srv/data || exit
cat > "$work/modes" << 'END'
750 root adm .
1710 nobody nogroup deep
600 bin bin deep/key
1777 root root drop
644 daemon daemon drop/empty file
4644 root root odd
2751 root games play
4750 root staff run
2770 games staff team
440 nobody adm team/old plan
660 games staff team/plan
END
find . -printf '%m %u %g %P\n' | sed 's/ $/ ./' | sort -k4 > "$work/found"
guard "contents" [ "$(cat team/plan 'team/old plan' run play odd deep/key)" = 'long plan 12short#!/bin/sdamaged!!oddsecre' ]
check "modes, owners, and no other files" cmp -s "$work/modes" "$work/found"
check "damaged files" lines /app/damaged.txt deep/key play
finish
