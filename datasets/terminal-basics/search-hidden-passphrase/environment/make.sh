# Files of many kinds; only one holds the right line.
set -e
mkdir -p /app/vault/notes /app/vault/.old "/app/vault/from ana" /tmp/m
cd /tmp/m
echo 'passphrase=tooshort' > a.txt
printf 'first\npassphrase=QuietHarbour\n' > b.txt
echo 'the passphrase=abcdefghijkl is an example' > c.txt
printf 'log\npassphrase=thirteenchars\nend\n' > d.txt
printf 'one\ntwo\npassphrase=%s\nthree\n' "$(echo ersryyncfzbx | tr a-z n-za-m)" > e.txt
cp c.txt /app/vault/notes/readme
gzip -nc a.txt > "/app/vault/from ana/letter.txt"
bzip2 -c b.txt > /app/vault/.old/b
xz -c d.txt > /app/vault/notes/d.log
tar --mtime=@0 -cf inner.tar e.txt c.txt
zip -qX inner.zip inner.tar a.txt
gzip -nc inner.zip > /app/vault/.old/picture.png
tar --mtime=@0 -cjf /app/vault/notes/archive a.txt d.txt
rm -rf /tmp/m
