"""python evaluate.py --help: see transformer/commands/evaluate.py."""

from transformer.__main__ import main

if __name__ == "__main__":
    main("evaluate")
