"""Parts that any JAX program needs.

Errors, exact decimals, files, locks, compilation, jobs of several processes, the mesh and the
sharding of arrays, signals, profiles, process start. Nothing here knows about text, models or
training.
"""
