"""The Transformer of "Attention Is All You Need" (arXiv 1706.03762) in JAX and Flax.

Letters. An array's name ends in its shape, and einsum strings use the same letters:

    B  batch (rows)          D  d_model              N  hypotheses: B * M
    S  source length         H  heads                M  beam size
    T  target length         K  size of a query      V  vocabulary size
    F  d_ff                     and key of a head    L  longest output of a search
                             U  size of a value
                                of a head
    A  accumulation steps

Masks are boolean, True where a query may attend. Segment ids number the sentences packed
into one row 1, 2, ...; 0 is padding.

Map, in reading order (a file imports only from files above it, `errors` and `sources`
included):

    errors       the exception for wrong input
    masks        who may attend to whom
    positions    sinusoidal and learned positions             Section 3.5
    layers       dropout, embedding, feed-forward, add & norm Sections 3.1, 3.3, 3.4, 5.4
    attention    multi-head attention                         Section 3.2
    model        encoder, decoder, Transformer                Section 3, Figure 1
    loss         cross-entropy with label smoothing           Section 5.4
    optimizer    Adam and its schedule                        Section 5.3
    tokenizer    SentencePiece                                Section 5.1
    datasets/    TFDS builders
    sources      sentence pairs from TFDS or text files       Section 5.1
    token_cache  pairs tokenised once, memory-mapped
    batching     packed rows; the batch of step k             Section 5.1
    training     the jitted train step                        Section 5
    decoding     beam search                                  Section 6.1
    translation  sentences in, sentences out
    scores       BLEU, chrF, TER
    evaluation   validation nll, scores of a split
    checkpoint   saving, restoring, averaging                 Section 6.1
    logs, plots  metrics and pictures
    experiment   a config file as checked, frozen sections
    cli          flags, errors and exit codes
"""
