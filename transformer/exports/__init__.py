"""Models that leave home.

A trained model in the forms that others use: workdir.py writes a work directory, __main__.py what
other systems run. import_marian.py brings models in. Only the entry scripts import this room.
"""
