set -e
git init -q -b main /app/garden && cd /app/garden
git config user.name Ana && git config user.email ana@example.org
n=0
commit() { n=$((n + 1)) && git add . && GIT_AUTHOR_DATE="2024-04-0$n 10:00 +0000" GIT_COMMITTER_DATE="2024-04-0$n 10:00 +0000" git commit -q --author "$1 <$1@example.org>" -m "$2"; }
printf 'north: trees\n\n\n\nsouth: grass\n' > plan.txt && commit Ana 'Plan'
printf 'spade\nrake\n' > tools.txt && commit Bo 'Tools'
git update-ref refs/remotes/origin/main main
printf 'beans\npeas\n' > beds.txt && commit Bo 'Beds for beans and peas'
echo 'gate password: 4711-heron' > gate.txt && echo hoe >> tools.txt && commit Ana 'Oops, password'
printf 'beans\npeas\nleeks\n' > beds.txt && commit Cleo 'A bed for leeks'
printf 'north: trees\n\n\n\nsouth: beds\n' > plan.txt
