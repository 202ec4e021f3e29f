"""What a `JsonFileStore` commits is what its next life finds; the rest is refused, by place and with what to do."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.fixed_shard import FixedShard


class Mean(msgspec.Struct):
    """A mean of some values."""

    n: int
    mean: float


class Named(TypedDict):
    """A dict of one declared key."""

    n: int


def count(directory: Path, key: object, messages: int, **parts: Any) -> dict[Any, int]:
    """Count messages of one key in one life of a shard, a transaction each; return the committed counts."""
    shard = FixedShard()
    store: JsonFileStore[dict[Any, int]] = JsonFileStore(shard, directory, initial={}, **parts)
    try:
        store.restore_checkpoint(shard)
        for _ in range(messages):
            store.state[key] = store.state.get(key, 0) + 1
            store.start_commit(shard, Checkpoint(), ()).result(10)
        return store.committed_state()
    finally:
        store.destroy()


@pytest.mark.parametrize("key", [7, -7, 1.5, b"ab", Decimal("1.50")], ids=repr)
def test_count_of_keys_that_are_no_text_is_refused(tmp_path: Path, key: object) -> None:
    """JSON makes text of them: each life would begin to count again, beside what the last one had counted."""
    with pytest.raises(
        StoreError, match=r"state\[.+\]: expected a key that is text.* use str\(key\)"
    ):
        count(tmp_path, key, 1)


def test_count_of_declared_keys_goes_on_in_the_next_life(tmp_path: Path) -> None:
    """Numbers are keys like others where the type says so."""
    for messages, total in ((5, 5), (3, 8), (4, 12)):
        assert count(tmp_path, 7, messages, state_type=dict[int, int]) == {7: total}


def test_refused_state_leaves_the_last_commit(tmp_path: Path) -> None:
    """The shard goes on from there once its application is mended."""
    shard = FixedShard()
    store: JsonFileStore[dict[str, float]]
    store = JsonFileStore(shard, tmp_path, initial={}, state_type=dict[str, float])
    store.restore_checkpoint(shard)
    store.state["a"] = 1.0
    store.start_commit(shard, Checkpoint(), ()).result(10)
    store.state["a"] = math.nan

    with pytest.raises(StoreError, match=r"state\['a'\]: nan would be read back|`null`"):
        store.start_commit(shard, Checkpoint(), ()).result(10)

    store.destroy()
    following: JsonFileStore[dict[str, float]]
    following = JsonFileStore(shard, tmp_path, initial={}, state_type=dict[str, float])
    following.restore_checkpoint(shard)
    assert following.state == {"a": 1.0}
    following.destroy()


@pytest.mark.parametrize(
    ("state_type", "state", "problem"),
    [
        (dict, {"a": {"b": [1, math.inf]}}, r"state\['a'\]\['b'\]\[1\]: inf would .* keep None"),
        (dict, {"a": (1, 2)}, r"state\['a'\]: \(1, 2\) would be read back as \[1, 2\]; declare"),
        (dict, {"a": {"b": object()}}, r"state\['a'\]\['b'\]: Encoding objects of type object"),
        (dict, {"a": {(1, 2): 3}}, r"state\['a'\]\[\(1, 2\)\] \(the key\): "),
        (dict, {"a": "\ud800"}, r"state\['a'\]: .*surrogates not allowed"),
        (dict, {"7": 8, 7: 4}, r"state\[7\]: expected a key that is text"),
        (dict[str, Named], {"a": {"n": 1, "m": 2}}, r"state\['a'\]\['m'\]: .* state_type declares"),
        (dict[int, int], {1: 1, "2": 2}, r"state\['2'\]: expected a key that state_type declares"),
        (dict[str, int], {"a": 1, "b": 2.5}, r"state\['b'\]: Expected `int`, got `float`"),
        (dict[int, int], {1: 1, "b": 2}, r"state\['b'\] \(the key\): Expected `int`"),
        (
            dict[str, dict[str, list[Mean]]],
            {"x": {}, "y": {"a": [], "b": [Mean(1, 1.0), Mean("2", 1.0)]}},  # type: ignore[arg-type]  # the point
            r"state\['y'\]\['b'\]\[1\]\.n: Expected `int`, got `str`",
        ),
        (
            dict[str, Mean],
            {"a": Mean(1, math.nan)},
            r"state\['a'\]\.mean: .*got `null` \(which JSON has for NaN",
        ),
        (dict[str, msgspec.Raw], {"a": msgspec.Raw(b"[1,\n2]")}, r"without line breaks"),
    ],
)
def test_refused_value_is_named_by_its_place(
    tmp_path: Path, state_type: Any, state: Any, problem: str
) -> None:
    """One value among many thousand: the error must lead to it."""
    shard = FixedShard()
    store: JsonFileStore[Any] = JsonFileStore(shard, tmp_path, initial={}, state_type=state_type)
    store.restore_checkpoint(shard)
    store.state = state

    with pytest.raises(StoreError, match=problem):
        store.start_commit(shard, Checkpoint(), ()).result(10)
    store.destroy()


def test_state_that_holds_itself_is_refused(tmp_path: Path) -> None:
    """The encoder's recursion must not end the member."""
    shard = FixedShard()
    store: JsonFileStore[dict[str, Any]] = JsonFileStore(shard, tmp_path, initial={})
    store.restore_checkpoint(shard)
    store.state["a"] = store.state

    with pytest.raises(StoreError, match="nested too deeply, or holds itself"):
        store.start_commit(shard, Checkpoint(), ()).result(10)
    store.destroy()


def test_initial_state_of_another_type_is_refused(tmp_path: Path) -> None:
    """Found when the store is made, and not by the first query."""
    with pytest.raises(ValidationError, match=r"initial: state\['a'\]: Expected `int`"):
        JsonFileStore(FixedShard(), tmp_path, initial={"a": 1.5}, state_type=dict[str, int])
