# Read into the script of every turn, for any POSIX shell. P = process of the pane's shell, S = of the tmux server,
# T = the pane's terminal, empty where unknown. Polls with builtins alone: what it starts, every turn of a run pays for.
set -f

nap() { # SECONDS, without a process where `read` can wait
    [ "$Z_" ] || if [ -n "$BASH_VERSION" ] && eval 'exec 9<> <(:)'; then Z_=read; else Z_=sleep; fi 2>/dev/null
    if [ "$Z_" = read ]; then read -r -t "$1" _ <&9; else sleep "$1"; fi
}

now() { # n = hundredths of a second since the machine's start; fails where that cannot be told
    read -r n _ </proc/uptime || return 1
    n=${n%.*}${n#*.} n=${n#0} n=${n#0}
} 2>/dev/null

look() { # PROCESS: c = its name, s = its state, g = the foreground process group of its terminal
    c= s= g=
    read -r l <"/proc/$1/stat" || return 1
    c=${l#*\(} c=${c%\)*}
    set -- ${l##*\) }
    s=$1 g=$6
} 2>/dev/null

runs() { # PROCESS: k = how many times it was given a processor
    read -r _ _ k <"/proc/$1/schedstat" || k=
} 2>/dev/null

kids() { # PROCESS: d = its children
    d=
    if [ -e "/proc/$1/task/$1/children" ]; then
        read -r d <"/proc/$1/task/$1/children"
        return
    fi
    set +f
    for f in /proc/[0-9]*/stat; do
        read -r l <"$f" && case "${l##*\) }" in ?" $1 "*) f=${f#/proc/} d="$d ${f%/stat}" ;; esac
    done
    set -f
} 2>/dev/null

pause() { nap "$(($1 / 100)).$(($1 / 10 % 10))$(($1 % 10))"; } # HUNDREDTHS of a second

before() { # what the foreground is before keys are sent: L0, K0, and the children that are no news, D
    L0= K0= D=' '
    look "$P" || return
    L0=$g
    kids "$P"
    D="$D$d "
    [ "$g" = "$P" ] || { kids "$g"; D="$D$d "; }
    runs "$g"
    K0=$k
}

rests() { # whether a shell L is in the foreground, and it and tmux sleep; q = the same while neither of them ran
    look "$S" && [ "$s" = S ] || return 1
    runs "$S"
    q=$k
    look "$P" || return 1
    L=$g
    [ "$L" = "$P" ] || look "$L" || return 1
    [ "$s" = S ] || return 1
    case $c in bash | zsh | fish | ksh* | mksh | sh | dash | ash | busybox) ;; *) return 1 ;; esac
    runs "$L"
    [ "$k" ] && [ "$q" ] && q="$L $k $q"
}

no_news() { # whether L has no child but those of before
    kids "$L"
    for i in $d; do case $D in *" $i "*) ;; *) return 1 ;; esac; done
}

interactive() { # whether L, not the pane's own shell, was started without a script
    set -- $(tr '\0' ' ' <"/proc/$L/cmdline")
    [ $# -gt 0 ] && shift
    for i; do case $i in --*) ;; -*c*) return 1 ;; -*) ;; *) return 1 ;; esac; done
} 2>/dev/null

asks() { # whether L, at rest, reads its next line. A line editor makes the terminal raw; a command finds it cooked
    no_news || return 1
    case $(stty -a <"$T") in
    *-icanon*) ;;
    *icanon*) case $c in sh | dash | ash | busybox) ;; *) return 1 ;; esac ;;
    *) return 1 ;;
    esac
    [ "$L" = "$P" ] || interactive
} 2>/dev/null

settled() { # SECONDS: whether L, at rest, asks, and neither it nor tmux has run for so long
    was=$q
    nap "$1"
    rests && [ "$q" = "$was" ] && asks
}

lives() { # whether the pane's shell has not ended; one that tmux has not waited for is still listed
    [ "$P" ] && [ -e "/proc/$$" ] || return 0
    look "$P"
    [ "$s" != Z ] && [ -e "/proc/$P" ]
}

begin() { # HUNDREDTHS: of a command that may take so long; before its keys
    e= w=$1
    now && b=$n e=$((n + w))
    before
}

await() { # SECONDS at rest: until the shell asks for a line or is gone, or the command's time is over
    [ "$e" ] || pause "$w"
    while [ "$e" ] && now && [ "$n" -lt "$e" ] && lives; do
        [ "$L0" ] && rests && [ "$L $k" != "$L0 $K0" ] && settled "$1" && return
        now
        w=$(((n - b) / 10))
        [ "$w" -le 25 ] || w=25
        [ "$w" -le $((e - n)) ] || w=$((e - n))
        if [ "$w" -gt 0 ]; then pause "$w"; else nap 0.006; fi
    done
}

failed() { # NUMBER of the command whose keys tmux did not take
    r=$?
    echo "failed $1"
    exit "$r"
}
