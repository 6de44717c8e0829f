"""Decoding: from a model to its outputs.

Beam search over any step function, ensembles of models, and translation of sentences. Outputs are
not scored against references here: that is for `metrics`.
Imports no family and no score.
"""
