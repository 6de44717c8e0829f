"""A trained model as a tool: lines in, lines out.

Reads text as it comes, cuts lines that are too long, and writes translations in order, so that a
restart after a kill continues them. The Python API is here, too: `transformer.load`.
Imports no family.
"""
