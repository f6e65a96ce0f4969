#!/bin/bash
set -e
cat > /app/prune.sh << 'END'
#!/bin/bash
export LC_ALL=C
cd -- "$1" || exit
find . -maxdepth 1 -type f -printf '%P\n' | grep -E '^.+-[0-9]{4}-[0-9]{2}-[0-9]{2}\.tar$' |
  sed -E 's/^(.*)-([0-9-]{10})\.tar$/\1\t\2\t&/' | sort -t $'\t' -k1,1 -k2,2r |
  awk -F'\t' -v keep="$2" '{ if (++n[$1] > keep) print $3 }' | sort | while IFS= read -r file; do
  rm -- "./$file" && printf '%s\n' "$file"
done
END
