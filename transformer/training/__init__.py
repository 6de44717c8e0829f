"""What an update does with a loss.

The train step, optimizers, learning-rate schedules, and the watch for a loss that diverges. It
works with any model that has a loss; what the loss is of, it does not know.
"""
