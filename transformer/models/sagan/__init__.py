"""The self-attention GAN (Zhang et al. 2018)."""

from transformer.models.sagan.sagan import FAMILY as FAMILY
