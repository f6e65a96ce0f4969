set -e
git init -q -b main /app/shop && cd /app/shop
git config user.name Ana && git config user.email ana@example.org
n=0
for message in 'Start' 'Prices' 'Prepare release 1.0' 'Release 1.0' 'Baskets' 'Release 1.0.1'; do
  n=$((n + 1)) && echo "$message" >> log.txt && git add .
  GIT_AUTHOR_DATE="2024-03-0$n 10:00 +0000" GIT_COMMITTER_DATE="2024-03-0$n 10:00 +0000" git commit -qm "$message"
done
