"""Loads message types by name, and derives the columns of their messages.

flights.messages:Flight     a generated protobuf class, or a msgspec Struct of JSON messages
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broadsheet.spark_bridge.format_options import OptionError

TIMESTAMP: Final = "google.protobuf.Timestamp"
_OPTION: Final = "messageType"
_META: Final = "_meta"
# Spark's integers are signed, so an unsigned one takes the next larger type.
_UNSIGNED_64: Final = DecimalType(20, 0)
_PROTOBUF_TYPES: Final[dict[int, DataType]] = {
    FieldDescriptor.TYPE_BOOL: BooleanType(),
    FieldDescriptor.TYPE_BYTES: BinaryType(),
    FieldDescriptor.TYPE_DOUBLE: DoubleType(),
    FieldDescriptor.TYPE_ENUM: StringType(),
    FieldDescriptor.TYPE_FIXED32: LongType(),
    FieldDescriptor.TYPE_FIXED64: _UNSIGNED_64,
    FieldDescriptor.TYPE_FLOAT: FloatType(),
    FieldDescriptor.TYPE_INT32: IntegerType(),
    FieldDescriptor.TYPE_INT64: LongType(),
    FieldDescriptor.TYPE_SFIXED32: IntegerType(),
    FieldDescriptor.TYPE_SFIXED64: LongType(),
    FieldDescriptor.TYPE_SINT32: IntegerType(),
    FieldDescriptor.TYPE_SINT64: LongType(),
    FieldDescriptor.TYPE_STRING: StringType(),
    FieldDescriptor.TYPE_UINT32: LongType(),
    FieldDescriptor.TYPE_UINT64: _UNSIGNED_64,
}
_PYTHON_TYPES: Final[dict[type, DataType]] = {
    msgspec.inspect.BoolType: BooleanType(),
    msgspec.inspect.BytesType: BinaryType(),
    msgspec.inspect.DateTimeType: TimestampType(),
    msgspec.inspect.DateType: DateType(),
    msgspec.inspect.DecimalType: DecimalType(38, 18),
    msgspec.inspect.EnumType: StringType(),
    msgspec.inspect.FloatType: DoubleType(),
    msgspec.inspect.IntType: LongType(),
    msgspec.inspect.LiteralType: StringType(),
    msgspec.inspect.StrType: StringType(),
    msgspec.inspect.UUIDType: StringType(),
}

MessageClass = type[Message] | type[msgspec.Struct]


def load_message_class(name: str) -> MessageClass:
    """Return the class that `module:attribute` names.

    Raises:
        OptionError: there is no such class, or it is of neither kind.
    """
    expected = "module:attribute of a protobuf message class or a msgspec Struct class"
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise OptionError(_OPTION, f"{expected} ({error})", got=name) from error
    if not isinstance(found, type) or not issubclass(found, (Message, msgspec.Struct)):
        raise OptionError(_OPTION, expected, got=name)
    return found


def columns_of(message_class: MessageClass, *, uuid_field: str) -> StructType:
    """Return a column for each field of a class but the one that holds the UUID.

    Raises:
        OptionError: a field has a type that no column has; list the columns in the option `schema` instead.
    """
    try:
        if issubclass(message_class, Message):
            schema = protobuf_columns(message_class.DESCRIPTOR)
            return StructType([field for field in schema if field.name != uuid_field])
        described = _python_type(msgspec.inspect.type_info(message_class))
    except TypeError as error:
        expected = f"fields that columns can hold ({error}); or columns by the option schema"
        raise OptionError(_OPTION, expected, got=message_class.__qualname__) from error
    assert isinstance(described, StructType), "a Struct is a struct"
    return StructType([field for field in described if field.name != _META])


def protobuf_columns(descriptor: Any, *, above: tuple[str, ...] = ()) -> StructType:
    """Return a column for each field of a protobuf message.

    Args:
        descriptor: Of the message, of either of protobuf's two classes of descriptors.
        above: Full names of the messages that contain this one.

    Raises:
        TypeError: it contains itself.
    """
    if descriptor.full_name in above:
        raise TypeError(f"{descriptor.full_name} lies in itself")
    above = (*above, descriptor.full_name)
    return StructType([StructField(f.name, _field_type(f, above)) for f in descriptor.fields])


def is_map(field: Any) -> bool:
    """Return whether a repeated field is a map."""
    entry = field.message_type
    return bool(field.is_repeated and entry is not None and entry.GetOptions().map_entry)


def _field_type(field: Any, above: tuple[str, ...]) -> DataType:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return MapType(_value_type(key, above), _value_type(value, above))
    single = _value_type(field, above)
    return ArrayType(single) if field.is_repeated else single


def _value_type(field: Any, above: tuple[str, ...]) -> DataType:
    if field.message_type is None:
        return _PROTOBUF_TYPES[field.type]
    if field.message_type.full_name == TIMESTAMP:
        return TimestampType()
    return protobuf_columns(field.message_type, above=above)


def _python_type(described: Any) -> DataType:
    info = msgspec.inspect
    match described:
        case info.StructType():
            return StructType(
                [StructField(f.encode_name, _python_type(f.type)) for f in described.fields]
            )
        case info.ListType() | info.SetType() | info.FrozenSetType() | info.VarTupleType():
            return ArrayType(_python_type(described.item_type))
        case info.DictType():
            return MapType(_python_type(described.key_type), _python_type(described.value_type))
        case info.UnionType():
            kinds = [t for t in described.types if not isinstance(t, info.NoneType)]
            if len(kinds) == 1:
                return _python_type(kinds[0])
    found = _PYTHON_TYPES.get(type(described))
    if found is None:
        raise TypeError(f"{type(described).__name__} has no column type")
    return found
