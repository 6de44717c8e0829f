"""Learning tasks: each joins data, model, step, decoding and scores.

`task` is the seam to the runs, and the registry; `supervised` is the base of tasks that learn from
examples. A task knows neither work directories nor checkpoints.
Imports no work directory.
"""
