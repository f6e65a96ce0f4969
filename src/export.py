"""`python -m src.export …` is `harbortrainer export …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["export", *sys.argv[1:]]))
