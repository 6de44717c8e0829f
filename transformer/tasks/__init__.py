"""Learning tasks: each joins data, model, step, decoding and scores.

`task` is the seam to the runs, and the registry; each other file is one task. A task knows neither
work directories nor checkpoints.
Imports no work directory.
"""
