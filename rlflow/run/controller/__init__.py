"""What the controller decides, without a clock, a socket, a process or a tensor.

events.py ids.py      what it hears and what it asks for
schedule.py           what fixes a run
state.py live.py      what it knows, and of what lives the states as arrows
journal.py books.py intervals.py           what a transition did to what outlives a crash, and the tables that this makes
decide.py             decide(state, event) -> actions
    admission.py dispatch.py routing.py watermark.py    which prompts are drawn, how many, and which engine gets a trajectory
    rollout.py buffer.py boarding.py       from a landed trajectory to a batch, without breaking the staleness bound
    turns.py                               a trajectory's turns after its first
    training.py fleet.py evaluation.py     train, sync, evaluate, save
    accounts.py tally.py totals.py passrates.py    what was kept and dropped, and what is known of the rows of the data
    timelines.py rollback.py resume.py     what is left at a checkpoint: after a trainer's death, and out of the ledger
    waits.py timeouts.py                   every wait has a name, a timeout and a consequence
order.py              which row of the data the next prompt is
"""
