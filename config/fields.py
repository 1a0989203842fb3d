"""The base classes of all settings models, and the field types that they share.

The types are strict where YAML surprises people (a quoted "false" is not a bool, and 1.7 is not an integer) and lenient
where the meaning is clear (1e4 is an integer, and so is a quoted number).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Strict,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from headrace.config.errors import Finding, FindingsError
from headrace.config.paths import checked_path

NUMBER = r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?"
"""Pattern of a decimal number in YAML or Python notation."""
_NUMBER = re.compile(NUMBER)
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

LARGEST = 10**15
"""Largest integer allowed in a configuration. The smallest allowed integer is `-LARGEST`. Floats represent both
exactly."""


class Settings(BaseModel):
    """Base class for the sections of the YAML. Instances are frozen, and unknown keys are refused."""

    # Built on first use rather than on import, so `--help` does not wait for it.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    more: ClassVar[type[Settings] | None] = None
    """Model for the values of undeclared keys; None if undeclared keys are refused."""

    @model_validator(mode="after")
    def _relate(self) -> Self:
        report([finding for finding in self._mistakes() if not finding.warns])
        self._derive()
        return self

    def _mistakes(self) -> Iterable[Finding]:
        """Find conflicts between fields that are individually valid; the findings' paths are relative to this model."""
        return ()

    def _derive(self) -> None:
        """Set fields whose default depends on other fields, using `_fill`."""

    def _fill(self, **values: object) -> None:
        """Set fields of this otherwise frozen model while it is being built."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _is_set(self, name: str) -> bool:
        """Return True if the user set this key, False if the key has its default."""
        return name in self.model_fields_set

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """Return a copy with other defaults: values for keys that are not set, and maps of values for sections.

        The keys still count as not set.
        """
        copy = self.model_copy()
        for name, value in defaults.items():
            section = getattr(self, name)
            if isinstance(section, Settings):
                copy._fill(**{name: section.with_defaults(value)})
            elif not self._is_set(name):
                copy._fill(**{name: value})
        copy._derive()
        return copy


def changed(settings: Settings) -> list[str]:
    """Return the keys whose values differ from the default.

    This does not use `model_fields_set`, which contains all keys if the settings come from plain data.
    """
    fields = type(settings).model_fields.items()
    return [name for name, field in fields if getattr(settings, name) != field.get_default(call_default_factory=True)]


def report(findings: Sequence[Finding]) -> None:
    """Raise a `FindingsError` if a validator found anything."""
    if findings:
        raise FindingsError(findings)


def is_reference(text: str) -> bool:
    """Return True if the text has the form `module:Class`."""
    return _REFERENCE.fullmatch(text) is not None


def hint_at_module(text: str) -> str:
    """Return a hint if a string is a file path rather than a module name, otherwise an empty string."""
    is_path = not {"/", "\\"}.isdisjoint(text) or ".py:" in text
    hint = "; name the module, not its file: for MyClass in my.py next to the YAML, write 'my:MyClass'"
    return hint if is_path else ""


def to_number(text: str) -> int | float | None:
    """Parse a decimal number in YAML or Python notation (`1e-4`, `5e6`, `1_000`); return None for any other text.

    An integer of more than 64 bits becomes a float, because integers of that size can't be sent to other processes.
    """
    if _NUMBER.fullmatch(text) is None:
        return None
    digits = text.replace("_", "")
    whole = digits.lstrip("+-").isdecimal() and len(digits) <= 20  # Python refuses thousands of digits
    return within_64_bits(int(digits)) if whole else float(digits)


def within_64_bits(number: int) -> int | float:
    """Return the number, converted to a float if it has more than 64 bits."""
    return number if -(2**63) <= number < 2**64 else float(number)


def _number(value: object) -> object:
    """Convert a quoted number to a number, because ML-Agents accepts quoted numbers and its files contain them."""
    if isinstance(value, str):
        number = to_number(value)
        return value if number is None else number
    return value


def _whole(value: object) -> object:
    value = _number(value)
    if isinstance(value, float) and (value.is_integer() or math.isinf(value)):
        value = int(max(-LARGEST - 1, min(value, LARGEST + 1)))
    if isinstance(value, int) and abs(value) > LARGEST:
        if value > 0:
            raise PydanticKnownError("less_than_equal", {"le": LARGEST})
        raise PydanticKnownError("greater_than_equal", {"ge": -LARGEST})
    return value


def _text(value: object) -> object:
    """Convert a number to text, for keys such as `run_id: 7`."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _any_path(value: object, check: ValidatorFunctionWrapHandler) -> object:
    """Allow a path with non-UTF-8 bytes, which Python represents as lone surrogates."""
    if isinstance(value, str) and not value.isascii():
        check(value.encode(errors="replace").decode())
        return value
    return check(value)


def _reference(value: object) -> object:
    if isinstance(value, str) and not is_reference(value):
        example = "'my_package.my_module:MyClass'"
        raise ValueError(f"'{value}' is not valid; expected module:Name, such as {example}{hint_at_module(value)}")
    return value


def one_of(words: Collection[str]) -> BeforeValidator:
    """Return a validator that accepts only these words, such as the names in a table.

    Words that are added to the collection later are accepted too.
    """
    return BeforeValidator(partial(_one_of, words))


def _one_of(words: Collection[str], value: object) -> object:
    word = _text(value)
    if isinstance(word, str) and word not in words:
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, words))})
    return value


def as_tuple(value: object) -> object:
    """Convert a YAML list to the tuple that a frozen model holds."""
    return tuple(value) if isinstance(value, list) else value


def _device(value: object) -> object:
    if isinstance(value, str):
        kind, _, index = value.partition(":")
        if kind == "gpu" or not kind.isalpha() or (":" in value and not index.isdecimal()):
            raise ValueError(f"'{value}' is not a torch device; expected a name like 'cpu', 'cuda' or 'cuda:1'")
    return value


Flag = Annotated[bool, Strict()]
Int = Annotated[int, Strict(), BeforeValidator(_whole)]
Float = Annotated[float, Strict(), BeforeValidator(_number)]
Text = Annotated[str, Strict(), BeforeValidator(_text)]
Reference = Annotated[str, Strict(), BeforeValidator(_reference)]
PathText = Annotated[Text, WrapValidator(_any_path), BeforeValidator(checked_path)]
Names = Annotated[tuple[Text, ...], BeforeValidator(as_tuple)]
Device = Annotated[Text, BeforeValidator(_device)]

PlainMap = dict[str, Any]
"""A map that is passed on unchanged, as keyword arguments, to code that the schema does not know."""

AUTO = "auto"


class ChoosingSettings(Settings):
    """A section with keys that may be `auto`: the run chooses their values when it starts.

    Until then, these keys have their default values, and `is_auto` returns True for them.
    """

    choosable: ClassVar[Mapping[str, bool]] = {}
    """Maps each key that may be `auto` to True if it is `auto` by default."""
    _auto: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="wrap")
    @classmethod
    def _leave_out(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Treat keys with the value `auto` as unset, and remember them."""
        if not isinstance(data, Mapping):
            return handler(data)
        auto = frozenset(name for name in cls.choosable if data.get(name) == AUTO)
        settings = handler({name: value for name, value in data.items() if name not in auto})
        settings._auto = auto
        return settings

    def is_auto(self, name: str) -> bool:
        """Return True if this key is `auto`, so the run chooses its value."""
        return not self._is_set(name) and (name in self._auto or self.choosable[name])

    def with_auto(self, name: str) -> Self:
        """Return a copy in which this unset key is `auto`."""
        copy = self.model_copy()
        copy._auto = self._auto | {name}
        return copy
