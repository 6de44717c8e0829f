"""Convolutional sequence-to-sequence learning (Gehring et al. 2017)."""

from transformer.models.convolutional.convolutional import FAMILY as FAMILY
