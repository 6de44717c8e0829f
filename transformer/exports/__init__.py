"""Conversion of models to and from other formats.

workdir.py writes a trained model as a work directory, others in the formats of other systems.
import_marian.py brings models in. Only commands import this room.
"""
