#!/bin/bash
set -e
cat > /app/rename.sh << 'END'
#!/bin/bash
export LC_ALL=C
cd -- "$1" || exit
for old in *; do
  new=$(printf '%s' "$old" | tr A-Z a-z)
  [ -f "$old" ] && [ "$old" != "$new" ] || continue
  if [ -e "$new" ]; then
    printf '%s: kept\n' "$old"
  else
    mv -- "$old" "$new" && printf '%s -> %s\n' "$old" "$new"
  fi
done
END
