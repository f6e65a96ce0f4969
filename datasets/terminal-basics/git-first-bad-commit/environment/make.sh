set -e
git init -q -b main /app/price && cd /app/price
git config user.name Ana && git config user.email ana@example.org
n=100
commit() { n=$((n + 1)) && git add . && GIT_AUTHOR_DATE="17000${n}00 +0000" GIT_COMMITTER_DATE="17000${n}00 +0000" git commit -qm "$1"; }
script() { printf '# version %s\ncount=$1\ncents=$2\n%s\necho $((%s))\n' "$1" "$2" "$3" > total.sh; }
for i in $(seq 1 8); do script "$i" '' 'count * cents' && commit "Version $i"; done
git tag good
for i in $(seq 9 24); do script "$i" "limit=$i" 'count * cents' && commit "Version $i"; done
for i in 25 26; do script "$i" 'if [ ; fi' 'count * cents' && commit "Version $i"; done
for i in $(seq 27 29); do script "$i" "limit=$((i - 1))" '(count + 0) * cents' && commit "Version $i"; done
for i in $(seq 30 47); do script "$i" "limit=$i" 'count * cents + (cents > 249 ? 1 : 0)' && commit "Version $i"; done
script 48 'if [ ; fi' 'count * cents' && commit "Version 48"
for i in $(seq 49 52); do script "$i" "limit=$i" 'count * cents + (cents > 249)' && commit "Version $i"; done
