"""Text and images to batches.

Sources (text files, TFDS data sets), tokenizers, the token cache, packing, batches, prefetching.
The batch of update k depends only on (seed, k). Imports no model.
"""
