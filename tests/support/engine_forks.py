"""A process of the server's environment that has imported skyrl, and forks one for each program that it reads.

A line of its input: [program, arguments, file of the output]. A line of its output: the program's exit status.
"""

# pyright: reportMissingImports=false
import json
import os
import signal
import sys

LIMIT_SEC = 1800  # of one program


def run(program: str, arguments: list[str], output: str) -> int:
    """Return the exit status."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(LIMIT_SEC)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv = ["-c", *arguments]
    exec(compile(program, "-c", "exec"), {"__name__": "__main__"})
    sys.exit()


def main() -> None:
    sys.path[:0] = ["server"]
    sys.path.append("server/shims")
    from quick_import import import_transformers

    import_transformers()
    import skyrl.backends.jax
    import skyrl.tinker.engine  # noqa: F401 -- for the programs

    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
