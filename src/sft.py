"""`python -m src.sft …` is `harbortrainer sft …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["sft", *sys.argv[1:]]))
