"""A worker notes how it was made, so that its twin can be made in another process."""

from __future__ import annotations

from typing import Any

import pytest

from rlflow import Site, Worker


class Plain(Worker): ...


class Tuned(Worker):
    def __init__(self, name: str, model: str, *, lr: float = 1e-3, **more: Any) -> None:
        super().__init__(name, **more)
        self.model, self.lr = model, lr


def test_options_hold_defaults_too() -> None:
    assert Plain("actor", dp=2).options.items() >= {"name": "actor", "dp": 2, "tp": 1, "temperature": 1.0, "on": None}.items()


def test_keyword_arguments_are_flat() -> None:
    assert Tuned("actor", "tiny", dp=4).options == {"name": "actor", "model": "tiny", "lr": 1e-3, "dp": 4}


def test_the_twin_is_equal() -> None:
    one = Tuned("actor", "tiny", lr=0.5, temperature=0.7)
    two = Tuned(**one.options)
    assert (two.name, two.model, two.lr, two.temperature, two.options) == ("actor", "tiny", 0.5, 0.7, one.options)


def test_open_keeps_the_site(tmp_path: Any) -> None:
    worker = Plain("actor")
    site = Site(name="actor", rank=0, dp_size=1, run_dir=tmp_path, seed=7, rendezvous="file:///x")
    worker.open(site)
    assert worker.site is site
    assert worker.server(site, tmp_path / "ready") is None


def test_a_worker_that_is_not_open_says_so_when_something_of_it_is_missing(tmp_path: Any) -> None:
    worker = Plain("judge")
    with pytest.raises(AttributeError, match="<Plain `judge`> has no attribute `engine`: this worker is not open here"):
        worker.engine  # type: ignore[attr-defined]  # noqa: B018
    worker.open(Site(name="judge", rank=0, dp_size=1, run_dir=tmp_path, seed=7, rendezvous=""))
    with pytest.raises(AttributeError, match=r"<Plain `judge`> has no attribute `engine`$"):
        worker.engine  # type: ignore[attr-defined]  # noqa: B018
    assert getattr(Plain("x"), "site", None) is None
