"""Every code, once, with its title; its page is tests/messages/RLFnnn.md, and `rlflow explain RLF202` prints that.

0xx build and names · 1xx dtype, shape, role · 2xx ownership, lifetime · 3xx cycles, versions · 4xx placement · 5xx row discipline
A page says why the fault is bad in RL, and holds bad programs, their exact messages and the programs repaired.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # --- build and names
    "RLF001": "no such field, operator or reading",
    "RLF002": "a parameter has no field type",
    "RLF003": "a name is taken",
    "RLF004": "a call does not bind",
    "RLF005": "not a field",
    "RLF006": "a branch on a field",
    "RLF007": "a computation on a field",
    "RLF008": "nothing makes a field that is read",
    "RLF009": "a replacement does not fit",
    "RLF010": "configuration that is not plain data",
    "RLF011": "training without a loss",
    "RLF012": "a type that does not exist at run time",
    "RLF013": "a declaration that does not fit",
    "RLF014": "one field, two meanings",
    "RLF015": "a number that counts nothing",
    "RLF016": "a count of something else",
    "RLF017": "a comment that suppresses nothing (a warning)",
    # --- dtype, shape, role
    "RLF101": "wrong dtype",
    "RLF102": "wrong number of axes",
    "RLF103": "wrong size",
    "RLF110": "nothing binds a size",
    "RLF121": "wrong role",
    "RLF122": "two arguments look swapped",
    "RLF123": "log-probs of two distributions meet",
    "RLF124": "log-probs of another policy",
    # --- ownership and lifetime
    "RLF201": "two writers",
    "RLF202": "weights are read after they were moved",
    "RLF203": "a worker does not hold these weights",
    "RLF204": "wrong reading of the weights",
    "RLF210": "nothing reads a result (a warning)",
    # --- cycles and versions
    "RLF301": "a feedback is never closed",
    "RLF302": "a feedback is closed with another's weights",
    "RLF304": "nothing brings new versions to a worker",
    "RLF307": "rows of another version or policy that nothing corrects",
    "RLF308": "a schedule that lags further than max_lag",
    "RLF309": "stale tokens that nothing masks",
    # --- placement
    "RLF401": "ranks that do not fit their devices",
    "RLF402": "colocated workers that must be awake at the same time",
    # --- row discipline
    "RLF501": "a group operator after groups were split",
    "RLF502": "row operators in the wrong order",
    "RLF503": "a filter after the batch was formed",
    "RLF504": "rows were cut for another worker",
    "RLF510": "rows that do not divide",
    "RLF511": "mini-batches dealt and cut in different numbers",
    "RLF512": "a group of one",
    "RLF513": "leaves that count as trajectories",
    "RLF514": "a group size that no longer holds",
    "RLF520": "unrelated rows",
    "RLF521": "a field did not go through a row operator",
    "RLF524": "statistics over pad rows",
    "RLF530": "a loss that depends on how rows are cut (a warning)",
}

# What `# rlflow: ignore[RLF210]` at a call may turn off: warnings, and errors after which the graph still means something and runs.
SUPPRESSIBLE = frozenset({"RLF123", "RLF124", "RLF210", "RLF307", "RLF503", "RLF512", "RLF513", "RLF524", "RLF530"})
