"""The decoder-only Transformer and memory-compressed attention (Liu et al. 2018)."""

from transformer.models.decoder_only.decoder_only import FAMILY as FAMILY
