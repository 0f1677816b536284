"""Configuration goes to JSON and comes back as what it was."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlflow import Worker
from rlflow.errors import UsageError
from rlflow.language.config import NotConfig, from_config, ref_of, resolve, to_config


@dataclass(frozen=True, kw_only=True)
class Options:
    low: float
    names: tuple[str, ...] = ()
    inner: Options | None = None


@dataclass
class Thawed:
    low: float


class Holder:
    def method(self) -> None: ...


def double(x: int, by: int = 2) -> int:
    return x * by


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4).filter(lambda k: not k.startswith("$")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain)
def test_plain_data_round_trips_through_json(value: Any) -> None:
    back = from_config(json.loads(json.dumps(to_config(value), allow_nan=False)))
    assert back == value
    assert type(back) is type(value)


def test_frozen_dataclasses_round_trip() -> None:
    options = Options(low=math.inf, names=("a", "b"), inner=Options(low=0.5))
    assert to_config(Options(low=0.5)) == {"$data": f"{__name__}:Options", "low": 0.5, "names": {"$tuple": []}, "inner": None}
    assert from_config(json.loads(json.dumps(to_config(options)))) == options


def test_nan_stays_nan() -> None:
    assert math.isnan(from_config(to_config(math.nan)))


def test_functions_classes_and_partials_are_names() -> None:
    assert to_config(double) == {"$ref": f"{__name__}:double"}
    assert from_config(to_config(double)) is double
    assert from_config(to_config(Options)) is Options
    assert from_config(to_config(partial(double, by=3)))(5) == 15


def test_a_worker_is_its_id() -> None:
    worker = Worker("actor")
    config = to_config((worker, 1), worker_id=lambda w: 4 if w is worker else -1)
    assert config == {"$tuple": [{"$worker": 4}, 1]}
    assert from_config(config, {4: worker}) == (worker, 1)


@pytest.mark.parametrize(
    "value",
    [Thawed(1.0), object(), {1: 2}, {"$ref": "x"}, lambda: None, {1, 2}, b"x", Worker("w"), Holder().method, [object()]],
    ids=["thawed", "object", "int key", "dollar key", "lambda", "set", "bytes", "worker", "bound method", "nested"],
)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(NotConfig):
        to_config(value)


def test_a_local_function_has_no_name_to_import() -> None:
    def local() -> None: ...

    with pytest.raises(NotConfig, match="define it at the top of a module"):
        ref_of(local)
    with pytest.raises(UsageError, match="move it to the top of the module"):
        resolve(f"{local.__module__}:{local.__qualname__}")


@pytest.mark.parametrize("ref", ["no_such_module:f", "math:no_such_function", "math:"])
def test_resolve_names_what_it_cannot_find(ref: str) -> None:
    with pytest.raises(UsageError, match="cannot find"):
        resolve(ref)


def test_a_numpy_number_is_not_plain() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(NotConfig, match="float64"):
        to_config(numpy.float64(1.0))
