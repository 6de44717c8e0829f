"""The life of a run, from its config file to its last checkpoint.

Config sections, the loop, checkpoints, logs, and restoring a trained model from a work directory.
Nothing here names sentences, BLEU or a model family: those belong to tasks and families.
Imports no family and no task module.
"""
