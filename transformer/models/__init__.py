"""The models and their parts.

The parts are numerics, layers, attention with its masks, the KV cache, positions, blocks (the
layers of encoder and decoder) and the loss. Each family of models has a file or folder; `family` is
the registry. A model is a function of its parameters and its batch: it knows neither optimizers,
nor files, nor the search that decodes with it.
Imports no optimizer, no score and no work directory.
"""
