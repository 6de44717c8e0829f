"""Scores of outputs.

They compare outputs with references, and involve no model.
Imports no model.
"""
