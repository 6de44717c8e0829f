"""The models, and the parts they are made of.

First the parts: numerics, layers, attention, masks, positions, blocks (the layers of encoder and
decoder), the loss. Then one file for each family of models, and `family`, the registry. A model
is a function of its parameters and of its batch: it knows neither optimizers, nor files, nor the
search that decodes with it.
"""
