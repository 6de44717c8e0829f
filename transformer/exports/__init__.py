"""Models that leave home.

A trained model in the forms that others use. Nothing imports this room but the entry scripts.
"""
