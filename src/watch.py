"""`python -m src.watch …` is `harbortrainer watch …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["watch", *sys.argv[1:]]))
