"""The paper's base model on WMT14 English-German; every field there is, once, commented.

    python train.py --config=configs/base.py --workdir=runs/base

The paper: 8 P100 GPUs, 12 hours; 27.3 tokenised, compound-split BLEU on newstest2014 with
the last 5 checkpoints averaged. Not yet trained here.

Any field can be set on the command line: --config.model.num_heads=16. None unsets one that may be
empty: --config.data.raw_dir=None.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    config = ConfigDict()

    config.task = ConfigDict()
    # What is learned from what: seq2seq, sentences from sentences; transduction, symbols from
    # symbols; question_answering, for bAbI (docs/algorithmic.md has these two); summarization
    # (docs/summarization.md); language_model (docs/language-models.md); masked_lm and
    # classification, for BERT (docs/bert.md); parsing, for trees (docs/parsing.md); images
    # (docs/images.md).
    config.task.name = "seq2seq"

    config.data = ConfigDict()
    # A data set of the Hugging Face hub as hf:REPOSITORY:CONFIG, or with @REVISION (docs/hub.md);
    # or a TFDS builder with its config, such as wmt14_translate/de-en. Downloaded when first used.
    config.data.dataset = "hf:wmt/wmt14:de-en"
    # Text fields of the data set; the target language also tells BLEU how to split words, by
    # its code (de, deu, pt-BR, zh_Hans, ...). M2M100 and NLLB know languages by their own codes
    # (docs/nllb.md).
    config.data.source_language = "en"
    config.data.target_language = "de"
    # Where TFDS keeps data sets and we keep the tokenised text.
    config.data.data_dir = "~/tensorflow_datasets"
    # A local folder with the raw files: instead of the download for multi30k and for data sets of
    # the hub, needed for babi and tatoeba_zh.
    config.data.raw_dir = placeholder(str)
    # Splits of the data set; of TFDS also slices such as train[:10%]. WMT14: newstest2013 and
    # newstest2014.
    config.data.train_split = "train"
    config.data.validation_split = "validation"
    config.data.test_split = "test"
    # Your own data instead of `dataset` (docs/tasks.md): records in .tsv, .jsonl or .parquet.
    # Several with commas between them, or patterns such as news/*.tsv.gz.
    config.data.train_file = placeholder(str)
    config.data.validation_file = placeholder(str)
    config.data.test_file = placeholder(str)
    # The fields of a record with source and target, by name such as translation.de, or as a column
    # of .tsv, from 1 on. Those of the data set, too. None: the codes of the languages.
    config.data.source_field = placeholder(str)
    config.data.target_field = placeholder(str)
    # Whether the first line of .tsv names the columns.
    config.data.has_header = False
    # Or text files, line by line: UTF-8, one sentence a line.
    config.data.train_source = placeholder(str)
    config.data.train_target = placeholder(str)
    config.data.validation_source = placeholder(str)
    config.data.validation_target = placeholder(str)
    config.data.test_source = placeholder(str)
    config.data.test_target = placeholder(str)
    # More training pairs by name, such as {"crawl": {"file": "crawl.tsv", "weight": 0.5}}: file, or
    # source and target, as for the splits, and source_field and target_field, if others; weight,
    # how many times an epoch has the corpus (without one, its pairs join the train split); tag, a
    # word before its sources (docs/fine-tuning.md); source_language and target_language, if others.
    config.data.corpora = ConfigDict()
    # The text is already split into tokens, with spaces between them; BLEU counts these.
    config.data.is_tokenized = False
    # One of sacreBLEU's tokenizers for BLEU, such as char or flores200, instead of the one for the
    # target language. evaluate.py has a flag of that name.
    config.data.bleu_tokenizer = placeholder(str)
    # The longest source and target of a training pair, in tokens. Longer pairs are dropped, and
    # counted. Sentences to translate are never dropped or cut.
    config.data.max_source_length = 256
    config.data.max_target_length = 256
    # Filters drop noisy training pairs, and all are off; held-out pairs stay (docs/cleaning.md).
    # One side may have at most so many times the tokens of the other, such as 3; 0: any.
    config.data.max_length_ratio = 0.0
    # Drop pairs whose sides are the same text.
    config.data.drop_identical = False
    # The scripts of source and target: Latin, Cyrillic or another of Unicode's names, or several
    # such as Han,Hiragana,Katakana. Of a side's letters at least min_script_share must be of its
    # script.
    config.data.source_script = placeholder(str)
    config.data.target_script = placeholder(str)
    config.data.min_script_share = 0.5
    # The most characters of a word between spaces, such as 40; 0: any.
    config.data.max_characters_per_token = 0
    # Which pairs are dropped as duplicates: none; or those of which the whole pair, the source or
    # the target came before.
    config.data.drop_duplicates = "none"
    # Several pairs share a row of a batch, so that few positions are padding. Rows are as wide as
    # the longest pair allowed; the side with more tokens gets wider rows. False: one pair a row,
    # as wide as the longest pair, for models that cannot keep the pairs of a row apart.
    config.data.packing = True

    config.tokenizer = ConfigDict()
    # bpe or unigram, by SentencePiece; or subword-nmt, for pre-tokenised text. With subword-nmt,
    # vocab_size is the number of merges, and the vocabulary holds what they leave in the text.
    # Or word: the most frequent words between spaces, at most vocab_size; others are unknown.
    config.tokenizer.model_type = "bpe"
    # Section 5.1; the 4 special pieces and the 256 bytes are among them.
    config.tokenizer.vocab_size = 37_000
    # Another type for the target, if not joint: word, for trees (docs/parsing.md).
    config.tokenizer.target_model_type = placeholder(str)
    # One vocabulary for both languages, or one of vocab_size for each.
    config.tokenizer.joint = True
    # The tokenizer is trained on at most so many training pairs, evenly spaced.
    config.tokenizer.sample_size = 1_000_000
    # BPE-dropout, for bpe and subword-nmt: the probability that a merge is left out in training
    # text (Provilkov et al. 2020: 0.1); 0: no dropout.
    config.tokenizer.sampling_alpha = 0.0
    # How many times each training pair is segmented, in advance. An epoch, the token cache and the
    # time to plan the batches grow by this factor. training.seed has no effect on what is drawn.
    config.tokenizer.num_samples = 1
    # SentencePiece models, or the tokenizer.model of another run, to use instead of a new one;
    # source_model alone if joint.
    config.tokenizer.source_model = placeholder(str)
    config.tokenizer.target_model = placeholder(str)

    config.model = ConfigDict()  # the columns of Table 3
    config.model.family = "transformer"  # which of models/family.py; the fields below are its own
    config.model.num_encoder_layers = 6  # N of the encoder
    config.model.num_decoder_layers = 6  # N of the decoder
    config.model.d_model = 512  # the size of embeddings and of each layer's output
    config.model.d_ff = 2048  # the inner size of feed-forward networks
    config.model.num_heads = 8  # attention heads h of each layer
    # The size of each head's keys and values; 0 is d_model / num_heads.
    config.model.d_k = 0
    config.model.d_v = 0
    # Heads that keys and values have, a divisor of num_heads: several queries share each of them
    # (grouped-query attention; 1: multi-query). 0: num_heads.
    config.model.num_key_value_heads = 0
    config.model.attention_bias = False  # whether the projections of attention have biases
    config.model.qk_norm = False  # whether each head's queries and keys are normalised, by RMSNorm
    # Scores s of attention become cap * tanh(s / cap); 0: they stay.
    config.model.logit_soft_cap = 0.0
    config.model.dropout = 0.1  # of sublayer outputs and of embeddings, Section 5.4
    config.model.attention_dropout = 0.0  # of attention weights
    config.model.activation_dropout = 0.0  # inside of feed-forward networks
    # plain, Equation 2; or gated, with one more matrix: glu, geglu, swiglu, reglu. With 2/3 of d_ff
    # these have as many parameters as plain ones.
    config.model.feed_forward = "plain"
    config.model.feed_forward_bias = True  # whether their layers have biases
    # Of plain feed-forward networks: relu, gelu (its tanh form), gelu_exact (by the error
    # function), elu, swish.
    config.model.activation = "relu"
    # post: LayerNorm(x + Sublayer(x)); or pre: x + Sublayer(LayerNorm(x)). sandwich also normalises
    # the output of each sublayer, deepnorm scales x, and rezero has no normalisation.
    config.model.norm = "post"
    config.model.normalization = "layer_norm"  # layer_norm or rms_norm
    config.model.norm_epsilon = 1e-6  # added to the variance
    # sinusoidal, or learned (Table 3, row E), or fairseq (the sinusoids of M2M100 and NLLB-200),
    # added to embeddings. In self-attention: rotary; relative (Shaw et al.), or relative_keys
    # without its values; t5; alibi. Or none.
    config.model.positions = "sinusoidal"
    # relative: further distances count as this one; t5: as in the last bucket. 0: 16 and 128.
    config.model.max_distance = 0
    # Rows of the tables of learned positions; no more than data.max_*_length.
    config.model.max_positions = 256
    # Which of source embedding, target embedding and output layer share one matrix:
    # all; decoder (the latter two); none.
    config.model.share_embeddings = "all"
    config.model.scale_embeddings = True  # times sqrt(d_model), Section 3.4
    config.model.scale_outputs = False  # logits divided by sqrt(d_model), as in T5
    # How many source tokens a position of the encoder holds; its embedding is the sum of theirs,
    # each times a learned mask. More than 1 for the facts of bAbI alone (docs/algorithmic.md).
    config.model.words_per_position = 1
    config.model.output_bias = False  # of the output layer; models of Marian have one
    # The decoder begins with the embedding of EOS, not of BOS; as in M2M100 and NLLB-200.
    config.model.starts_with_eos = False
    # Type of activations; bfloat16 on GPUs, TPUs and CPUs with AMX or AVX-512 BF16.
    # Parameters, softmax, normalisation, logits and loss are float32 in either case.
    config.model.dtype = "float32"
    # Fast forms for GPUs and TPUs: plain, none; some of cudnn_packed, cudnn_attention, triton_norm
    # and blocked_loss, with commas between; or auto, all that suit the device. A run tries each
    # first (docs/performance-notes.md).
    config.model.kernels = "auto"
    # Whether the backward pass computes each layer again instead of keeping its activations: for
    # models or rows that do not fit otherwise (docs/scaling.md).
    config.model.rematerialize = False

    config.optimizer = ConfigDict()  # Section 5.3
    # adam, adamw, bert_adam, lamb, sgd or adafactor. bert_adam is adamw without the correction of
    # the moments' bias; lamb scales the update of each matrix, also each expert's, by its norm.
    # Adafactor multiplies the rate by the size (root mean square) of each parameter. A field that
    # an optimizer or a schedule does not use must stay as it is.
    # Or an optimizer of Optax, such as optax.lion or optax.contrib.muon (docs/configs.md).
    config.optimizer.name = "adam"
    # Of an optimizer of Optax, by name: {"b1": 0.95, "weight_decay": 0.1}. Biases and the scales of
    # normalisation do not decay, where it takes a mask.
    config.optimizer.arguments = placeholder(dict)
    config.optimizer.beta1 = 0.9  # of Adam and its relatives; the momentum of sgd
    config.optimizer.beta2 = 0.98  # of Adam and its relatives
    config.optimizer.epsilon = 1e-9  # likewise
    # For all but adam and sgd: an update takes rate * weight_decay of each parameter, but of no
    # bias and of none that normalisation scales or shifts by.
    config.optimizer.weight_decay = 0.0
    config.optimizer.max_grad_norm = 0.0  # gradient clipping by global norm; 0: none
    # noam is Equation 3, whose peak follows from d_model and warmup_steps. inverse_sqrt has the
    # same shape and a peak of its own, as have linear and cosine, which fall to 0, and constant.
    # wsd stays at the peak, then falls to 0 in a straight line, wsd_sqrt as 1 - sqrt.
    config.optimizer.schedule = "noam"
    config.optimizer.peak_learning_rate = placeholder(float)
    config.optimizer.warmup_steps = 4000  # updates in which the rate rises to its peak
    # The update at which the rate of linear, cosine and wsd is 0.
    config.optimizer.decay_steps = placeholder(int)
    config.optimizer.cooldown_steps = placeholder(int)  # the last updates, in which wsd falls
    # After so many measurements of training.best_metric without a better one the learning rate is
    # multiplied by plateau_factor, and again after as many more; 0: never.
    config.optimizer.plateau_patience = 0
    config.optimizer.plateau_factor = 0.5

    config.training = ConfigDict()
    config.training.steps = 100_000  # updates of the whole run
    # Positions in an update, source or target, whichever are more: whole rows.
    config.training.tokens_per_update = 25_000
    # As many as fit on one device at once; an update is accumulated from such parts.
    # 0: all of it, on CPUs 2,048.
    config.training.max_tokens_per_device = 0
    config.training.label_smoothing = 0.1  # epsilon of Section 5.4
    # A work directory, or what evaluate.py --export made of one (as of an average), whose
    # parameters and tokenizer the run begins with; the optimizer begins anew. Or a folder of the
    # Hugging Face hub (docs/exporting.md).
    config.training.init_from = placeholder(str)
    config.training.seed = 0  # of parameters, dropout and the order of batches
    config.training.log_every = 100  # updates between lines of metrics.jsonl
    # Updates between checkpoints, each with its validation nll (the paper: every 10 minutes).
    config.training.checkpoint_every = 1500
    # Full validation, which also translates and measures BLEU: at each checkpoint or some of
    # them; 0: never.
    config.training.full_validation_every = 7500
    config.training.keep_last = 5  # checkpoints; the best one is kept besides
    # Which metric of the task names the best checkpoint, kept besides the last: bleu or nll.
    config.training.best_metric = "bleu"
    # Stop after so many measurements of best_metric without a better one; 0: never.
    config.training.patience = 0
    # An update whose loss or gradient is not finite is skipped. After so many in a row, or of
    # updates whose loss is so far (in nats per token; 0: any) above its running average, or whose
    # generator of images has no gradient, training goes back to the last checkpoint and passes over
    # the batches up to the bad ones; after so many rollbacks without a new checkpoint it stops with
    # a report.
    config.training.rollback_after = 5
    config.training.max_loss_rise = 2.0
    config.training.max_rollbacks = 3
    # Parameters that stay as they are: patterns of their names, or of beginnings of these, between
    # commas, such as encoder_*,source_embedding (docs/fine-tuning.md).
    config.training.freeze = placeholder(str)
    # The decay of an exponential moving average of the parameters, such as 0.999; 0: none. It takes
    # the memory of the parameters once more, and --checkpoint=ema uses it.
    config.training.ema = 0.0
    # A project of Weights & Biases to log to, besides metrics.jsonl (docs/tracking.md).
    config.training.wandb = placeholder(str)

    config.decoding = ConfigDict()  # Section 6.1
    config.decoding.beam_size = 4  # hypotheses of each sentence; 1: greedy
    config.decoding.length_penalty = 0.6  # its exponent alpha; 0: long outputs get no help
    # What scores are divided by. gnmt: ((5 + length) / 6)^alpha; power: length^alpha.
    config.decoding.length_penalty_form = "gnmt"
    # How much scores fall where source tokens get little attention (beta of Wu et al. 2016).
    config.decoding.coverage_penalty = 0.0
    # The longest output: source tokens * max_length_ratio, rounded down, + max_extra_length, EOS
    # included.
    config.decoding.max_extra_length = 50
    config.decoding.max_length_ratio = 1.0
    config.decoding.max_length = 0  # the most tokens of any output; 0: as many as the source allows
    config.decoding.min_length = 0  # the fewest tokens of any output, EOS included
    config.decoding.min_length_ratio = 0.0  # the fewest for each source token, rounded up
    # No output has so many tokens in a row a second time; 0: it may.
    config.decoding.no_repeat_ngram = 0
    # What the logits of tokens that the output has already are divided by, or multiplied with where
    # they are below 0 (Keskar et al. 2019: 1.2); 1: they stay.
    config.decoding.repetition_penalty = 1.0
    config.decoding.beam_groups = 1  # groups that share the beam (Vijayakumar et al. 2016)
    # By how many nats a token is worth less to a group for each hypothesis of earlier groups that
    # took it at the same time.
    config.decoding.diversity = 0.0
    config.decoding.temperature = 0.0  # above 0: sample at this temperature, do not search
    config.decoding.top_k = 0  # sample from so many tokens, the most probable ones; 0: from all
    # Sample from the fewest tokens that have this probability together.
    config.decoding.top_p = 1.0
    config.decoding.seed = 0  # of samples; above temperature 0
    # Minimum Bayes risk: of so many samples, or hypotheses of the beam, the one most like all of
    # them by chrF comes first (docs/translating.md); 0: the one with the best score.
    config.decoding.mbr = 0
    # Outputs are trees over the words of the source: matching brackets, a tag for each word.
    config.decoding.brackets = False
    # On CPUs, multiply matrices as whole numbers of 8 bits: less time than in float32, and some
    # other outputs (docs/performance.md).
    config.decoding.int8 = False

    config.mesh = ConfigDict()  # docs/scaling.md; one of them may be 0: all devices that are left
    # Devices that differ in the rows they compute, and are alike in all else.
    config.mesh.data = 0
    # Devices that share rows out among them, too, and keep a part each of the parameters.
    config.mesh.fsdp = 1
    # Devices that compute a part each of every matrix product, for the same rows.
    config.mesh.tensor = 1

    config.lock()
    return config
