"""The commands: flags, and one call.

Each file is the command of its name, `transformer import-marian` import_marian.py, and is imported
only when the command runs: its docstring is the head of --help, and `main` runs it. Flags are
declared without importing what runs, so that --help takes no time. runs/cli.py has what they share.
"""
