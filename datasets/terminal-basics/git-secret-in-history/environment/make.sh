set -e
git init -q -b main /app/bot && cd /app/bot
git config user.name Ana && git config user.email ana@example.org
n=10
commit() { n=$((n + 1)) && git add . && GIT_AUTHOR_DATE="2024-06-$n 10:00 +0000" GIT_COMMITTER_DATE="2024-06-$n 10:00 +0000" git commit -q --author "$1 <$1@example.org>" -m "$2"; }
echo 'print("hello")' > bot.py && commit Ana 'Say hello'
echo 'KEY=9f1c-77ab' > keys.env && echo 'print("hello", open("keys.env").read())' > bot.py && commit Bo 'Read the key'
echo '# Bot' > README && commit Ana 'Readme'
git tag backup
git checkout -q -b dev && echo 'print("beep")' > beep.py && commit Cleo 'Beep'
git checkout -q main
echo 'KEY=9f1c-77ac' > keys.env && echo 'print("hi", open("keys.env").read())' > bot.py && commit Bo 'New key, shorter greeting'
git rm -q keys.env && echo 'import os; print("hi", os.environ["KEY"])' > bot.py && commit Ana 'Key from the environment'
