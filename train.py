"""python train.py --help: see transformer/commands/train.py."""

from transformer.__main__ import main

if __name__ == "__main__":
    main("train")
