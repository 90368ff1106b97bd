"""Trees of frozen dataclasses to JSON values and back, strictly.

Configurations are saved beside weights, so a key that is missing or unknown is an error: it
means that file and program disagree on what the numbers are.
"""

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from piwm_gym.systems import unknown

T = TypeVar("T")


def to_json(config: Any) -> Any:
    """Configuration as dicts, lists, numbers, strings and booleans.

    Args:
        config: A dataclass of numbers, strings, booleans, tuples of them, and such dataclasses.

    Raises:
        TypeError: A value of another type.
    """
    if is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_json(getattr(config, f.name)) for f in fields(config)}
    if isinstance(config, tuple):
        return [to_json(item) for item in config]
    if config is None or isinstance(config, bool | int | float | str):
        return config
    raise TypeError(f"a configuration holds numbers, strings and tuples; got {config!r}")


def from_json(cls: type[T], data: Any, where: str = "config") -> T:
    """Inverse of :func:`to_json`.

    Args:
        cls: The dataclass to build.
        data: What :func:`to_json` returned, after a trip through JSON.
        where: Path of ``data`` in the tree, for error messages.

    Raises:
        ValueError: A missing or unknown key, or a value of the wrong type; the message holds
            its path in the tree.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {data!r}; expected the fields of {cls.__name__}")
    names = tuple(f.name for f in fields(cls))  # type: ignore[arg-type]
    for name in data:
        if name not in names:
            raise ValueError(f"{where}: {unknown('key', name, names)}")
    for name in names:
        if name not in data:
            raise ValueError(f"{where}: key {name!r} is missing")
    hints = get_type_hints(cls)
    return cls(**{name: _value(hints[name], data[name], f"{where}.{name}") for name in names})


def _value(hint: Any, value: Any, where: str) -> Any:
    """``value`` as the annotated type ``hint``; JSON's lists become tuples."""
    if is_dataclass(hint) and isinstance(hint, type):
        return from_json(hint, value, where)
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), value, where)
    choices = get_args(hint) or (hint,)  # ``float | None`` has two
    if value is None and type(None) in choices:
        return None
    if float in choices and type(value) in (int, float):
        return float(value)
    if type(value) not in choices:  # exactly: True is no integer here
        names = " or ".join(getattr(choice, "__name__", str(choice)) for choice in choices)
        raise ValueError(f"{where} is {value!r}; expected {names}")
    return value


def _tuple(hints: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {value!r}; expected a list")
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        raise ValueError(f"{where} has {len(value)} items; expected {len(hints)}")
    items = zip(hints, value, strict=True)
    return tuple(_value(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(items))


__all__ = ["from_json", "to_json"]
