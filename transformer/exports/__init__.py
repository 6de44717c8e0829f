"""Conversion of models to other formats.

workdir.py writes a trained model as a work directory, others in the formats of other systems.
Only commands import this room.
"""
