"""What any JAX program needs, whatever it computes.

Errors, decimals, files, locks, compilation, several processes, the mesh and how arrays lie on it,
signals, profiles, the start of a process. Nothing here knows of text, of models or of training.
"""
