"""The loop for real.

session.py    one run from the command to its end
loop.py       events in, decide, actions out            controller/   what is decided
sampling.py   trajectories and groups before they board ready.py      where their rows lie
batchscope.py one batch, from rows to trained weights   rows.py       which rows, as numbers
blocks.py     what lies in the pool                     stall.py      who waits for whom
staff.py launch.py calls.py transport.py messages.py    the processes, and how they are talked to
site.py worker.py stream.py interpret.py letters.py     inside a worker process
graph.py digests.py   the plan as the run time reads it, and what its operators were made of
rundir.py record.py runs.py report.py bias.py screen.py    what a run leaves, was told, what became of it, what it shows
ledger/ rowfiles.py checkpoints.py                      what outlives a kill: what was decided, rows, weights
retention.py deleting.py                                which weights stay, and how the others go
audit.py audit_rules.py                                 nothing lost, doubled or skipped
"""
