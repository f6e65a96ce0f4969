set -e
git init -q -b main /app/site && cd /app/site
git config user.name Ana && git config user.email ana@example.org
commit() { GIT_AUTHOR_DATE="$2" GIT_COMMITTER_DATE="$2" git commit -qm "$1"; }
mkdir pages
echo '<h1>Home</h1><a href="contact.html">contact</a>' > pages/index.html && git add . && commit 'Home' '2024-05-01 09:00 +0000'
echo '<h1>Contact</h1>ask at the harbour' > pages/contact.html && git add . && commit 'Contact' '2024-05-02 09:00 +0000'
git rm -q pages/contact.html && echo '<h1>Home</h1>' > pages/index.html && git add . && commit 'Clean up' '2024-05-03 09:00 +0000'
