#!/bin/bash
set -e
cd /app
mkdir -p letters
python3 - <<'END'
template = open("template.txt").read()
for line in open("people.tsv"):
    id, name, city, amount = line.rstrip("\n").split("\t")
    letter = template.replace("{{name}}", name).replace("{{city}}", city).replace("{{amount}}", amount)
    open(f"letters/{id}.txt", "w").write(letter)
END
