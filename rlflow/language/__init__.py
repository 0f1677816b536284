"""What a user writes, and how it becomes a graph while the pipeline function runs.

dims → spec          sizes as polynomials; dtype, shape and role of a field
record, loss         fields that travel together; what training minimises
operator, worker     a hop, and the process that runs it
feedback             the only back edge
trace ← tracer       the graph under construction ← one call of an operator
source, diagnostic   places in the user's file; errors as data
config               values that a plan can hold
"""
