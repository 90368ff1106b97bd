"""A dict whose values are computed when they are first asked for."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class _Deferred:
    """A value that is not there yet."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute


class LazyDict(dict[str, Any]):
    """A dict whose first values appear on first access; later ones are set as in any dict.

    Steps return what describes them in one of these, for most of it is never looked at. Copies,
    merges and pickles are ordinary dicts with all values.

    Args:
        deferred: Functions without arguments, called once at most.
    """

    def __init__(self, deferred: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__({key: _Deferred(compute) for key, compute in deferred.items()})

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, _Deferred):
            value = value.compute()
            super().__setitem__(key, value)
        return value

    def __iter__(self) -> Iterator[str]:  # its presence keeps dict(this) from copying unread values
        return super().__iter__()

    def _read(self) -> dict[str, Any]:
        return {key: self[key] for key in self}

    def get(self, key: str, default: Any = None) -> Any:
        """Value of a key, or ``default``."""
        try:
            return self[key]
        except KeyError:
            return default

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key and return its value."""
        if key in self:
            self[key]
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Value of a key, which is set if it is not there."""
        super().setdefault(key, default)
        return self[key]

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key and return it with its value."""
        key = next(reversed(self))
        return key, self.pop(key)

    def values(self) -> Any:
        """All values."""
        return self._read().values()

    def items(self) -> Any:
        """All pairs of keys and values."""
        return self._read().items()

    def copy(self) -> dict[str, Any]:
        """Ordinary dict with all values."""
        return self._read()

    def __or__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return self._read() | other

    def __ror__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return other | self._read()

    def __eq__(self, other: object) -> bool:
        return self._read() == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self._read())

    def __reduce__(self) -> tuple[type, tuple[list[tuple[str, Any]]]]:
        return dict, (list(self.items()),)


__all__ = ["LazyDict"]
