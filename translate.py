"""python translate.py --help: see transformer/commands/translate.py."""

from transformer.__main__ import main

if __name__ == "__main__":
    main("translate")
