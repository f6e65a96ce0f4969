set -e
git init -q -b main /app/server && cd /app/server
git config user.email team@example.org && git config user.name Team
n=10
write() { printf 'HOST = "%s"\nPORT = %s\n\n%s\nRETRIES = %s\n' "$1" "$2" "$3" "$4" > settings.py; }
commit() { n=$((n + 1)) && git add . && GIT_AUTHOR_DATE="2024-01-$n 08:00 +0000" GIT_COMMITTER_DATE="2024-01-$n 08:00 +0000" \
  git commit -q --author "$1 <$1@example.org>" -m "$2"; }
write localhost 8000 'TIMEOUT = 30' 3 && commit Bea 'Settings'
write 0.0.0.0 8000 'TIMEOUT = 30' 3 && commit Cem 'Listen everywhere'
echo 'import settings' > app.py && commit Bea 'Read settings'
write 0.0.0.0 8080 'TIMEOUT = 30  # seconds' 3 && commit Dora 'Port, comment'
write 0.0.0.0 8080 'TIMEOUT = 5  # seconds' 4 && commit Cem 'Retry more often'
write 0.0.0.0 9090 'TIMEOUT = 5  # seconds' 4 && commit Dora 'Timeouts and ports'
write 0.0.0.0 9090 'TIMEOUT = 60  # seconds' 4 && commit Bea 'Longer timeout'
echo 'TIMEOUT = 30' > notes.txt && commit Eli 'Notes'
rm notes.txt && commit Eli 'No notes'
