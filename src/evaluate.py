"""`python -m src.evaluate …` is `harbortrainer evaluate …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
