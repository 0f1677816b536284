"""Who trains: one replica of a Hugging Face model per data-parallel rank, AdamW, and a checkpoint that survives a kill.

    protocol.py      what an engine promises (Megatron fills the same), and who divides
    torch.py         TorchEngine: the cast below, put together
    ├── model.py         checkpoint folder → model; what save_pretrained would write ← model
    ├── forward.py       token ids → log_probs, entropy, values at next-token positions
    ├── scoring.py       rows → micro-batches by a token budget → rows, without gradient
    ├── denominators.py  counts of a mini-batch over all ranks, known before its first micro-batch
    ├── shares.py        how much a row weighs, where its trajectory became several
    ├── terms.py         terms of the losses → sum / count, and sums for the metrics
    ├── filled.py        fields that the plan leaves to the training forward
    ├── view.py          what a loss reads: the rows in the layout of the forward, and sums over one row
    ├── packed.py        rows of a micro-batch end to end, without padding
    ├── context.py       the part of each row that a context-parallel rank has (no engine here has such ranks; Megatron does)
    ├── statistics.py    a first pass over the mini-batch, for losses whose terms need a statistic of it
    ├── update.py        one mini-batch: gradients → sum over ranks → clip → AdamW
    ├── optimizer.py     AdamW, its moments by parameter name
    ├── schedule.py      learning rate as a function of the step
    ├── distributed.py   sums and words between ranks, each wait with a name and a bound
    ├── weights.py       parameters out, in buckets, under their checkpoint names
    └── checkpoint.py    save in one rename, restore to the bit

`import rlflow.engines.train` imports neither torch nor transformers; `rlflow.engines.train.torch` does.
"""
