"""From a model to its outputs.

Beam search over any step function, several models that decode as one, and sentences in, sentences
out. What an output is worth is not decided here.
"""
