#!/bin/bash
set -e
cat > /app/rotate.sh << 'END'
#!/bin/bash
file=$1 keep=$2
[ -s "$file" ] || exit 0
numbers=()
for old in "$file".*.gz; do
  n=${old#"$file".} n=${n%.gz}
  [[ $n =~ ^[1-9][0-9]*$ ]] && [ "$n" -ge 2 ] && numbers+=("$n")
done
for n in $(printf '%s\n' "${numbers[@]}" | sort -nr); do
  if [ "$n" -ge "$keep" ]; then rm -f "$file.$n.gz"; else mv "$file.$n.gz" "$file.$((n + 1)).gz"; fi
done
if [ -e "$file.1" ] && [ "$keep" -ge 2 ]; then gzip -c "$file.1" > "$file.2.gz"; fi
cp -p "$file" "$file.1"
: > "$file"
END
