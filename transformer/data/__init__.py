"""From text to batches of token ids.

Sources (text files, TFDS data sets), tokenizers, the token cache, packing, batches, prefetching.
The batch of update k is a function of (seed, k) alone. Nothing here knows of models.
"""
