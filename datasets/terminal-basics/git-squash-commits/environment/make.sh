set -e
git init -q -b main /app/recipes && cd /app/recipes
git config user.name Ana && git config user.email ana@example.org
n=0
commit() { n=$((n + 1)) && git add . && GIT_AUTHOR_DATE="2024-02-0$n 10:00 +0000" GIT_COMMITTER_DATE="2024-02-0$n 10:00 +0000" git commit -qm "$1"; }
echo '# Recipes' > README && commit 'Start'
echo soup > soup.txt && commit 'Add soup'
echo rye > rye.txt && commit 'wip'
echo spelt > splet.txt && commit 'more bread'
git mv splet.txt spelt.txt && commit 'typo'
echo 'rye and water' > rye.txt && rm soup.txt && echo 'leek soup' > leek.txt && commit 'done?'
