"""Sweeps: config files that say which runs belong together. See docs/sweeps.md."""
