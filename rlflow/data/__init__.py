"""The data path: how rows of the loop are held, moved and ordered. Nothing here knows of operators, graphs or algorithms.

dtypes.py   the eight dtypes of a field, and how each lies in memory
column.py   one field of n rows: values + offsets, never padded          padded() makes [B, S] at the last moment
batch.py    Block: n rows, named columns                                 take(-1 - i) makes pad row i
torch.py    Block <-> right-padded torch tensors                         (imports torch at the first call)
tensors.py  rows of right-padded tensors, where there is no Block        row operators called outside a run
shapes.py   declared shapes [B, S], R = S - 1 -> sizes row by row        cuts padded results back to ragged columns
arrow.py    Block <-> one Arrow record batch, for what outlives its process
layout.py   Block <-> one run of bytes, self-describing, read as views
pool/       bytes shared by the processes of a run: put, view, release   keys travel, columns do not
rowplan.py  pad, rebalance, shard, micro-pack as indices on lengths      a plan of a few bytes a row
packing.py  micro-batches of one rank under a budget of tokens
"""
