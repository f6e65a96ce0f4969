"""`python -m src.report …` is `harbortrainer report …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
