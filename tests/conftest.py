"""Every test, and every process that one starts, compares the contents of an operator's inputs before and after each call."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ["RLFLOW_DEBUG"] = "1"  # before rlflow is imported, which reads it once

settings.register_profile("busy", deadline=None)  # no test asserts times: others may take the cores
settings.load_profile("busy")
