#!/bin/bash
. /tests/lib.sh

at() { repo /app/shop log -1 --format=%s "$1"; }
guard "main" [ "$(repo /app/shop log --format=%s main | tr '\n' ,)" = "Release 1.0.1,Baskets,Release 1.0,Prepare release 1.0,Prices,Start," ]
guard "main is checked out" [ "$(repo /app/shop symbolic-ref HEAD)" = refs/heads/main ]
check "branch stable" [ "$(at refs/heads/stable)" = "Release 1.0" ]
check "tag v1.0" [ "$(at refs/tags/v1.0)" = "Release 1.0" ]
check "is annotated" [ "$(repo /app/shop for-each-ref --format='%(objecttype) %(contents:subject)' refs/tags/v1.0)" = "tag First release" ]
finish partial
