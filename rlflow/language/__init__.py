"""What a user writes, and how it becomes a graph while the pipeline function runs.

dims → spec          sizes as polynomials; dtype, shape and role of a field
record ← misuse      fields that travel together; what a record is not; `absent`: the hole of one that is left out
units ← miscount     what a number counts, and one that counts something else; `counts`: the least that makes a graph
loss ← denominator   what training minimises; what it may be divided by; `aggregate`: how the terms of tokens become one number
rowview              sums over a row, and back to its tokens, in every layout
corrects             in what two log-probs can differ
operator, worker     a hop, and the process that runs it; `devices`: what its ranks run on
state ← keeps        what lives across steps, and an operator that keeps what it does not declare
writeonce            an operator that writes into what it was given; `body`: one that is declared only
feedback             the only back edge; `stale`: what becomes of rows that are too slow for it
trace, traced        the graph under construction, and what it is made of
call ← tracer        one call of an operator ← its arguments (`misplaced`, `lacks`, `fits`), then its `results`
swap                 another function in the place of an operator
source, comments     places in the user's file, and what is said there to the checker; `hints`: the types in a signature
diagnostic           errors as data
config               values that a plan can hold; `options`: those that travel together, as parameters of a pipeline
"""
