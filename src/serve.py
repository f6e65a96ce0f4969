"""`python -m src.serve …` is `harbortrainer serve …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
