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

Map, in reading order; a file imports only from files above it:

    startup      what must happen before JAX is imported
    errors       the exception for wrong input
    files        files that are whole or absent
    lock         one training process for each work directory
    compilation  compiled programs: kept, counted, measured
    distributed  several processes that work as one
    provenance   commit, versions, hardware
    datasets/    TFDS builders: a grammar of English and German, Multi30k
    sources      sentence pairs from TFDS or text files       Section 5.1
    vocabulary   token ids; what every tokenizer can do
    bpe_dropout  merges left out at random
    pieces       SentencePiece                                Section 5.1
    merges       subword-nmt, for text that is tokenised
    tokenizer    the tokenizers of a run
    token_cache  pairs tokenised once, memory-mapped
    masks        who may attend to whom                       Section 3.2.3
    positions    sinusoidal positions                         Section 3.5
    layers       dropout, embedding, feed-forward, add & norm Sections 3.1, 3.3, 3.4, 5.4
    attention    multi-head attention                         Section 3.2
    model        encoder, decoder, Transformer                Section 3, Figure 1
    flops        the arithmetic a model needs
    loss         cross-entropy with label smoothing           Section 5.4
    optimizer    Adam and its schedule                        Section 5.3
    packing      which pairs share a row
    batching     packed rows; the batch of step k             Section 5.1
    prefetch     batches made ahead in a thread
    sharding     the mesh; how arrays lie on its devices
    profiling    traces of a few training steps
    preemption   being told to stop
    training     the jitted train step                        Section 5
    integrity    whether files and arrays are what they were
    divergence   a loss that is not finite or rises
    checkpoint   saving, restoring, averaging                 Section 6.1
    decoding     beam search                                  Section 6.1
    ensemble     several models that search as one
    translation  sentences in, sentences out                  Section 6.1
    scores       BLEU, chrF, TER
    evaluation   validation nll, scores of a split
    logs, plots  metrics and pictures
    experiment   a config file as checked, frozen sections
    trained      a trained model, restored
    export       a trained model without its training
    initial      a trained model that a new run begins with
    ledger       the results in results/
    results_md   RESULTS.md and its pictures, from these
    recipes      in what a run differs from a published one
    cli          flags, errors and exit codes
"""
