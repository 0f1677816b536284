"""The running rows as arrays, so that a step costs numpy calls and not Python per row.

Rows 0 … n-1 run; row i is slot i of the K/V slabs. `tokens[i, :length[i]]` is prompt + output so far; the newest token's K/V
is not written yet. Removing rows moves the last ones into the holes, and says so, for the cache to do the same.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlflow.engines.rollout.embedded.request import Request
from rlflow.engines.rollout.embedded.sampling import SamplingRows

__all__ = ["RunningBatch"]

_Array = TypeVar("_Array", bound=NDArray[Any])


class RunningBatch:
    """Arrays over rows; every array has room for more rows than run."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.length = np.zeros(0, np.int64)  # prompt and output so far
        self.prompt = np.zeros(0, np.int64)
        self.limit = np.zeros(0, np.int64)  # longest it may become
        self.min_length = np.zeros(0, np.int64)  # no stop token before
        self.temperature = np.zeros(0, np.float32)
        self.greedy = np.zeros(0, np.bool_)
        self.seed = np.zeros(0, np.uint64)
        self.top_k = np.zeros(0, np.int64)
        self.top_p = np.zeros(0, np.float32)
        self.min_p = np.zeros(0, np.float32)
        self.truncated = np.zeros(0, np.bool_)
        self.stops_on_text = np.zeros(0, np.bool_)
        self.tokens = np.zeros((0, 0), np.int64)
        self.log_probs = np.zeros((0, 0), np.float32)  # at the token's own position
        self.stop_ids = np.full((0, 1), -1, np.int64)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def longest_limit(self) -> int:
        return int(self.limit[: len(self)].max(initial=0))

    @property
    def used_tokens(self) -> int:
        return int(self.length[: len(self)].sum())

    def add(self, request: Request) -> None:
        """Append a row holding the request's prompt and the output it already has."""
        row, prompt, sampling = len(self), len(request.input_ids), request.sampling
        known = request.input_ids + request.output_ids
        self._make_room(row + 1, request.limit, len(sampling.stop_ids))
        self.tokens[row, : len(known)] = known
        self.log_probs[row, prompt : len(known)] = request.log_probs
        self.stop_ids[row] = -1
        self.stop_ids[row, : len(sampling.stop_ids)] = sampling.stop_ids
        self.length[row], self.prompt[row], self.limit[row] = len(known), prompt, request.limit
        self.min_length[row] = prompt + sampling.min_new_tokens
        self.temperature[row], self.greedy[row], self.seed[row] = sampling.temperature, sampling.greedy, sampling.seed
        self.top_k[row], self.top_p[row], self.min_p[row] = sampling.top_k, sampling.top_p, sampling.min_p
        self.truncated[row] = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self.stops_on_text[row] = bool(sampling.stop_text)
        self.requests.append(request)

    def sampling_rows(self, first: int) -> SamplingRows:
        """What the sampler needs for the rows from `first` on."""
        rows = slice(first, len(self))
        early = np.flatnonzero(self.length[rows] < self.min_length[rows])
        return SamplingRows(
            temperature=self.temperature[rows],
            greedy=self.greedy[rows],
            seed=self.seed[rows],
            step=self.length[rows] - self.prompt[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            truncated=self.truncated[rows],
            masked_ids=[(int(r), tuple(i for i in self.stop_ids[first + r].tolist() if i >= 0)) for r in early],
        )

    def append_tokens(self, first: int, tokens: NDArray[np.int64], log_probs: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Write one new token for each row from `first` on; returns which of them end, by length or a stop id [len - first]."""
        rows = slice(first, len(self))
        index, at = np.arange(first, len(self)), self.length[rows]
        self.tokens[index, at] = tokens
        self.log_probs[index, at] = log_probs
        self.length[rows] += 1  # `at` is a view of it: counts the new token from here on
        stopped = (self.stop_ids[rows] == tokens[:, None]).any(1) & (at >= self.min_length[rows])
        ended: NDArray[np.bool_] = (at >= self.limit[rows]) | stopped
        return ended

    def output_ids(self, row: int) -> list[int]:
        ids: list[int] = self.tokens[row, self.prompt[row] : self.length[row]].tolist()
        return ids

    def output_count(self, row: int) -> int:
        return int(self.length[row] - self.prompt[row])

    def remove(self, done: NDArray[np.bool_]) -> tuple[list[Request], NDArray[np.int64], NDArray[np.int64]]:
        """Take the rows of `done` [n] out, their outputs written into the requests.

        Returns the requests, and (source, target) rows that were moved into the holes, for the cache to follow.
        """
        gone = [self._written_back(int(row)) for row in np.flatnonzero(done)]
        left = len(self) - len(gone)
        target = np.flatnonzero(done[:left])
        source = left + np.flatnonzero(~done[left:])
        for array in self._row_arrays().values():
            array[target] = array[source]
        for t, s in zip(target.tolist(), source.tolist(), strict=True):
            self.requests[t] = self.requests[s]
        del self.requests[left:]
        return gone, source, target

    def _written_back(self, row: int) -> Request:
        request = self.requests[row]
        request.output_ids = self.output_ids(row)
        request.log_probs = self.log_probs[row, self.prompt[row] : self.length[row]].tolist()
        return request

    def _row_arrays(self) -> dict[str, NDArray[Any]]:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def _make_room(self, rows: int, length: int, stops: int) -> None:
        if rows > len(self.length):
            for name, array in self._row_arrays().items():
                setattr(self, name, _padded(array, max(rows, 2 * len(self.length)), None, 0))
        self.tokens = _padded(self.tokens, len(self.length), length, 0)
        self.log_probs = _padded(self.log_probs, len(self.length), length, 0)
        self.stop_ids = _padded(self.stop_ids, len(self.length), stops, -1)


def _padded(array: _Array, rows: int, columns: int | None, fill: int) -> _Array:
    """The array itself if it is large enough, else a larger copy."""
    grow = [(0, max(0, rows - array.shape[0]))] + [(0, max(0, (columns or 0) - size)) for size in array.shape[1:]]
    if not any(more for _, more in grow):
        return array
    return np.pad(array, grow, constant_values=fill)  # type: ignore[return-value]
