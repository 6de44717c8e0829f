"""The commands: flags, and one call.

Each file is the command of its name, `transformer by-length` by_length.py, and is imported only
when the command runs: its docstring is the head of --help, and `main` runs it. Flags are declared
without importing what runs, so that --help takes no time. runs/cli.py does what they share.
"""
