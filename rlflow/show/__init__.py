"""What a person sees of a plan.

explain   the field map: fields, their writers and readers, what crosses to another process
diff      what changes from one plan to another
mermaid   the ring as a drawing
report    what a check found, for machines
codes     the page of an error code
"""
