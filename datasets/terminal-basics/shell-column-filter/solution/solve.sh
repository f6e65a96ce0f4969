#!/bin/bash
set -e
cat > /app/filter.sh << 'END'
#!/bin/bash
not=0
while getopts c:v:n option; do
  case $option in
    c) column=$OPTARG ;;
    v) value=$OPTARG ;;
    n) not=1 ;;
    *) exit 1 ;;
  esac
done
IFS= read -r header
index=0 place=-1
while IFS= read -r name; do
  [ "$name" = "$column" ] && place=$index
  index=$((index + 1))
done < <(printf '%s' "$header" | tr ',' '\n'; echo)
if [ "$place" = -1 ]; then
  echo "no such column: $column" >&2
  exit 2
fi
printf '%s\n' "$header"
while IFS= read -r line; do
  field=$(printf '%s\n' "$line" | cut -d, -f$((place + 1)))
  if [ "$field" = "$value" ]; then same=1; else same=0; fi
  [ "$same" = "$not" ] || printf '%s\n' "$line"
done
END
