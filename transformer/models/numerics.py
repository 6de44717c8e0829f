"""Until branch models brings its own."""

from transformer.models.layers import DropoutRngs  # noqa: F401
