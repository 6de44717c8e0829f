"""The life of a run, from its config file to its last checkpoint.

Config sections, the loop, checkpoints, logs, and the trained model that is restored from a work
directory. Neither sentences nor BLEU nor any family of models is named here: that is for the task
and the family to say.
"""
