"""Parameters declared as dataclass fields, with texts, limits and type conversion."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
PLUS = "+"  # between the names of several choices


class ConfigError(ValueError):
    """An invalid parameter; the text is one line with its name, its value and the valid values."""


def option(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = (),
    items: type | None = None,
    pattern: str = "",
    several: bool = False,
    live: bool = False,
    reason: str = "",
) -> Any:
    """Declare a config field with its description and allowed values.

    ``choices``: or what returns them, asked whenever they are needed.
    ``pattern``: a regular expression for texts that are allowed in addition to the choices.
    ``several``: a list of choices is allowed too; the value is then their names with ``PLUS``
    between. ``items``: element type of a list of any length; None: a list has as many numbers as
    its default. ``live``: may change while the node is configured. The new config
    (``PipelineConfig``) comes by ``reconfigure``. ``reason``: why there are no other choices; the
    error for another value ends with it.
    """
    metadata = {"text": text, "low": low, "high": high, "choices": choices, "items": items}
    metadata |= {"pattern": pattern, "several": several, "live": live, "reason": reason}
    if isinstance(default, tuple):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def group(cls: type, prefix: str) -> Any:
    """Declare a nested config, whose parameter names start with ``prefix``."""
    return field(default_factory=cls, metadata={"prefix": prefix, "cls": cls})


@dataclass(frozen=True)
class Parameter:
    """One parameter with its public name and value."""

    name: str
    value: Any
    text: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    items: type | None = None  # element type of a list of any length
    pattern: str = ""  # of texts that are allowed in addition to the choices
    several: bool = False  # whether names of several choices may be given, with ``PLUS`` between
    live: bool = False  # whether it may change while the node is configured
    reason: str = ""  # why there are no other choices

    def check(self) -> None:
        """Raise ConfigError if the value is outside its range or choices."""
        free = self.pattern and re.fullmatch(self.pattern, str(self.value))
        given = self.value.split(PLUS) if self.several else [self.value]
        if self.choices and not free and not set(given) <= set(self.choices):
            choices = ", ".join(self.choices) + ("; or a list of them" if self.several else "")
            choices += f" ({self.reason})" if self.reason else ""
            raise ConfigError(f"{self.name} is {self.value!r}: must be one of {choices}")
        if len(set(given)) < len(given):
            raise ConfigError(f"{self.name} is {self.value!r}: name each one once")
        if isinstance(self.value, float) and math.isnan(self.value):
            raise ConfigError(f"{self.name} is NaN")
        if self.low is not None and self.value < self.low:
            raise ConfigError(f"{self.name} is {self.value}: must be at least {self.low}")
        if self.high is not None and self.value > self.high:
            raise ConfigError(f"{self.name} is {self.value}: must be at most {self.high}")


def parameters(config: Any, prefix: str = "") -> Iterator[Parameter]:
    """Yield all parameters of a config object with their public names, in order."""
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if "prefix" in item.metadata:
            yield from parameters(value, prefix + item.metadata["prefix"])
        else:
            choices = item.metadata["choices"]
            given = {**item.metadata, "choices": choices() if callable(choices) else choices}
            yield Parameter(prefix + item.name, value, **given)


def nearest(name: str, known: Sequence[str]) -> str:
    """The text `` (did you mean ...?)`` with the known name most similar to ``name``, or ""."""
    alike = difflib.get_close_matches(name, known, 1)
    # The correct last part in the wrong group, or without a group.
    alike = alike or [k for k in known if k.rpartition(".")[2] == name.rpartition(".")[2]]
    return f" (did you mean {alike[0]}?)" if alike else ""


def build_config(cls: type[T], given: Mapping[str, Any], prefix: str) -> T:
    """Make a config of class ``cls`` from parameter values; missing ones keep their defaults."""
    chosen: dict[str, Any] = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        if "prefix" in item.metadata:
            inner = item.metadata["prefix"]
            chosen[item.name] = build_config(item.metadata["cls"], given, prefix + inner)
        elif prefix + item.name in given:
            chosen[item.name] = given[prefix + item.name]
    return cls(**chosen)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Convert nested YAML keys to dotted names: {"window": {"size": 8}} -> {"window.size": 8}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat


def convert_list(name: str, value: Any, items: type | None) -> tuple[Any, ...]:
    """Convert a list of any length to a tuple. Raises ConfigError for other values.

    An empty list has no type in ROS: it arrives as None or as empty bytes.
    """
    allowed = (int, float) if items is float else (str,)
    empty = value is None or (not isinstance(value, (str, Mapping)) and not len(value))
    if empty:
        return ()
    good = isinstance(value, (list, tuple)) and all(
        isinstance(v, allowed) and not isinstance(v, bool) for v in value
    )
    if not good:
        kind = "numbers" if items is float else "texts"
        raise ConfigError(f"{name} is {value!r}: must be a list of {kind}")
    return tuple(float(v) if items is float else v for v in value)


def join_choices(name: str, value: Any) -> Any:
    """Convert a list of choices to one text. Raises ConfigError for an empty list."""
    if not isinstance(value, (list, tuple)):
        return value
    names = convert_list(name, value, str)
    if not names:
        raise ConfigError(f"{name} is an empty list: name at least one")
    return PLUS.join(names)


def bool_to_word(value: Any, choices: Sequence[str]) -> Any:
    """Convert a bool to ``on`` or ``off`` if that is a choice: YAML reads these words as bools."""
    word = "on" if value is True else "off" if value is False else value
    return word if word in choices else value


def convert(name: str, value: Any, default: Any) -> Any:
    """Convert ``value`` to the type of ``default``; only int to float and list to tuple.

    Raises ConfigError for any other type.
    """
    if isinstance(default, bool) or isinstance(value, bool):
        good = isinstance(default, bool) and isinstance(value, bool)
    elif isinstance(default, float):
        good = isinstance(value, (int, float))
        value = float(value) if good else value
    elif isinstance(default, tuple):
        good = isinstance(value, (list, tuple)) and len(value) == len(default)
        value = tuple(float(v) for v in value) if good else value
    else:
        good = isinstance(value, type(default))
    if not good:
        kind = "list" if isinstance(default, tuple) else type(default).__name__
        raise ConfigError(f"{name} is {value!r}: must be a {kind}, for example {default!r}")
    return value
