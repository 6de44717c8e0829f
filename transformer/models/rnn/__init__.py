"""RNN encoder-decoders: Sutskever et al. 2014, Bahdanau et al. 2015, Luong et al. 2015."""

from transformer.models.rnn.rnn import FAMILY as FAMILY
