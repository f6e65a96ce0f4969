"""`python -m src.train …` is `harbortrainer train …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
