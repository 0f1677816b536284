"""What a person sees of a plan.

explain   the field map: fields, their writers and readers, what crosses to another process
code      the page of an error code
"""

from .codes import explain_code as explain_code
from .explain import explain as explain
from .explain import explain_json as explain_json
