"""`python -m src.replay …` is `harbortrainer replay …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["replay", *sys.argv[1:]]))
