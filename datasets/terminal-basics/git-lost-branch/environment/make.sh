set -e
git init -q -b main /app/atlas && cd /app/atlas
git config user.name Ana && git config user.email ana@example.org
n=0
commit() { n=$((n + 1)) && git add . && GIT_AUTHOR_DATE="2024-07-0$n 10:00 +0000" GIT_COMMITTER_DATE="2024-07-0$n 10:00 +0000" git commit -qm "$1"; }
echo atlas > index.txt && commit 'Start the atlas'
git checkout -q -b maps && echo hills > hills.map && commit 'Add map of the hills'
echo coats > coast.map && commit 'Add map of the coats'
echo coast > coast.map && GIT_COMMITTER_DATE="2024-07-03 11:00 +0000" && export GIT_COMMITTER_DATE && git add . && git commit -q --amend -m 'Add map of the coast'
unset GIT_COMMITTER_DATE
git checkout -q main && echo legend >> index.txt && commit 'Add a legend'
git branch -q -D maps
