set -e
git init -q -b main /app/menu && cd /app/menu
git config user.name Ana && git config user.email ana@example.org
commit() { git add . && GIT_AUTHOR_DATE="$2" GIT_COMMITTER_DATE="$2" git commit -qm "$1"; }
printf 'MENU\n\nbread: rye\nwater: still\n\n\nsoup: tomato\nmain: trout\ndessert: plums\n\n\ntea: mint\n' > menu.txt && commit 'Menu' '2024-09-01 12:00 +0000'
git checkout -q -b winter
printf 'MENU\n\nbread: rye\nwater: still\n\n\nsoup: leek\nmain: trout\ndessert: baked apple\n\n\ntea: ginger\n' > menu.txt && commit 'Winter' '2024-11-01 12:00 +0000'
echo 'leeks, apples, ginger' > shopping.txt && commit 'Shopping' '2024-11-02 12:00 +0000'
git checkout -q main
printf 'MENU\n\nbread: spelt\nwater: still\n\n\nsoup: pumpkin\nmain: trout\ndessert: quince\n\n\ntea: mint\n' > menu.txt && commit 'Autumn' '2024-10-01 12:00 +0000'
