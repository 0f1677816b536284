"""`python tests/messages/update.py [RLF202 ...]`: write the messages of the pages down anew. Read the diff before you keep it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pages import HERE, PAGES, cases_of, found_in


def with_messages_of_today(page: Path, folder: Path) -> str:
    """The page with what is now said of its bad programs."""
    text = page.read_text()
    for case in cases_of(page):
        said, _ = found_in(case.name, case.bad, folder)
        before = f"{case.bad}```\n\n```text\n"
        assert text.count(before) == 1, f"{page.name}: two cases have one bad program"
        text = text.replace(f"{before}{case.message}```", f"{before}{said}\n```")
    return text


if __name__ == "__main__":
    chosen = [HERE / f"{code.upper()}.md" for code in sys.argv[1:]]
    for page in chosen or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(with_messages_of_today(page, Path(folder)))
