"""Infos whose values appear on first access are otherwise ordinary dicts."""

import copy
import pickle

import pytest

from piwm_gym.lazy import LazyDict


def made(calls: list[str]) -> LazyDict:
    def value(name: str) -> str:
        calls.append(name)
        return name.upper()

    return LazyDict({name: lambda name=name: value(name) for name in "abc"})


def test_a_value_is_computed_when_asked_for_and_once() -> None:
    calls: list[str] = []
    info = made(calls)
    assert list(info) == ["a", "b", "c"]
    assert "a" in info
    assert len(info) == 3
    assert calls == []
    assert info["b"] == info["b"] == info.get("b") == "B"
    assert info.get("z", 1) == 1
    assert calls == ["b"]


@pytest.mark.parametrize(
    "read",
    [
        dict,
        copy.copy,
        copy.deepcopy,
        LazyDict.copy,
        lambda info: {**info},
        lambda info: {} | info,
        lambda info: info | {},
        lambda info: dict(info.items()),
        lambda info: dict(zip(info, info.values(), strict=True)),
        lambda info: {key: info.pop(key) for key in list(info)},
        lambda info: dict(reversed([info.popitem() for _ in range(3)])),
        lambda info: {key: info.setdefault(key) for key in info},
        lambda info: pickle.loads(pickle.dumps(info)),
    ],
)
def test_every_way_to_read_it_gives_values(read: object) -> None:
    assert read(made([])) == {"a": "A", "b": "B", "c": "C"}  # type: ignore[operator]


def test_it_is_written_to_like_any_dict() -> None:
    info = made([])
    info["d"] = 1
    info.update(a=2)
    del info["b"]
    info |= made([])
    assert info == {"a": "A", "c": "C", "d": 1, "b": "B"}
    assert repr(info) == repr(dict(info))
    with pytest.raises(KeyError):
        info.pop("z")
    assert info.pop("z", 3) == 3
