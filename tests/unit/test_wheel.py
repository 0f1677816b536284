"""What is built from the repository."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from hatchling.builders.wheel import WheelBuilder

from rlflow.compile.codes import CODES

ROOT = Path(__file__).parents[2]


def built(version: str, folder: Path) -> list[str]:
    """The names in a wheel: `standard`, or `editable`."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=[version])
    with ZipFile(wheel) as archive:
        return archive.namelist()


def test_a_wheel_holds_the_packages_and_the_page_of_each_code(tmp_path: Path) -> None:
    names = built("standard", tmp_path)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"rlflow", "operators", "pipelines"}
    assert sorted(name for name in names if name.startswith("rlflow/messages/")) == [f"rlflow/messages/{code}.md" for code in sorted(CODES)]


def test_an_editable_install_points_to_the_repository(tmp_path: Path) -> None:
    assert [name for name in built("editable", tmp_path) if ".dist-info" not in name] == ["_rlflow.pth"]
