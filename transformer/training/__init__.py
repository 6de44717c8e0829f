"""Updates of a model by its loss.

The train step, optimizers, learning-rate schedules, and the monitor of diverging losses. All work
with any model that has a loss, and know nothing about its task. Imports no family, no score and no
work directory.
"""
