# worker.sh FOLDER MODE [ARGUMENT...]: notes its runs in FOLDER/runs
folder=$1 mode=$2
shift 2
printf '%s %s\n' "$#" "$*" >> "$folder/runs"
n=$(wc -l < "$folder/runs")
case $mode in
  fail) exit 3 ;;
  third) [ "$n" -ge 3 ] || kill -9 $$ ;;
  wait)
    trap 'sleep 0.5; echo term >> "$folder/runs"; exit 0' TERM
    echo $$ > "$folder/pid"
    while :; do sleep 0.1; done
    ;;
esac
