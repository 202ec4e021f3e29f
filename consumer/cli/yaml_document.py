"""Strict YAML: unknown keys and wrong types are errors that name the place."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import yaml

from allocator.errors import ValidationError

DocumentT = TypeVar("DocumentT")


def decode_yaml(text: str, document_type: type[DocumentT], source: str) -> DocumentT:
    """Read YAML into a typed document.

    Args:
        text: The YAML.
        document_type: A msgspec Struct type.
        source: Where the text came from, for error messages.

    Raises:
        ValidationError: the text is no YAML, or does not fit the type.
    """
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValidationError(source, f"is not YAML: {_one_line(error)}") from error
    if raw is None:
        raise ValidationError(source, "is empty")
    try:
        return msgspec.convert(raw, document_type)
    except msgspec.ValidationError as error:
        raise ValidationError(source, str(error)) from error


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def encode_yaml(document: object) -> str:
    """Return a document as YAML, fields in their declared order, absent where they have their default."""
    return yaml.safe_dump(msgspec.to_builtins(document), sort_keys=False, allow_unicode=True)
