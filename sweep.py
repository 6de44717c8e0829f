"""python sweep.py --help: see transformer/commands/sweep.py."""

from transformer.__main__ import main

if __name__ == "__main__":
    main("sweep")
