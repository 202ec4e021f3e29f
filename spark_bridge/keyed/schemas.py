"""Spark's schemas as Arrow's, and back, without a JVM.

Spark parses a table schema in its JVM; here `broadsheet.consumer.keyed.ddl` does. The Arrow types are made here and not
by PySpark, because stored state is compared by them, and another release of PySpark may name the parts of a type
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from broadsheet.consumer.keyed.ddl import parse_ddl
from broadsheet.runtime.errors import ValidationError

_PLAIN: Final[Mapping[type[DataType], pa.DataType]] = {
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", "UTC"),
    TimestampNTZType: pa.timestamp("us"),
}
_OF_ARROW: Final[Mapping[pa.DataType, Callable[[], DataType]]] = {
    arrow: spark for spark, arrow in _PLAIN.items()
}


def struct_of(declared: StructType | str, field: str) -> StructType:
    """Return the schema that a user gave.

    Args:
        declared: The schema, or a table schema as text ("user string, n int").
        field: Names it in errors.

    Raises:
        ValidationError: it is neither, or has a type that Arrow has not.
    """
    if isinstance(declared, StructType):
        arrow_schema(declared, field)
        return declared
    if not isinstance(declared, str):
        raise ValidationError(
            field, f"expected a StructType or a table schema, got {type(declared).__name__}"
        )
    try:
        return StructType([_spark_field(each) for each in parse_ddl(declared)])
    except ValidationError as error:
        raise error.under(field) from error


def state_struct(declared: object, field: str, kind: str) -> StructType:
    """Return the schema of a state variable; errors are those of Spark.

    Raises:
        PySparkRuntimeError: it is no schema of a table.
    """
    if isinstance(declared, str):
        try:
            return struct_of(declared, field)
        except ValidationError as error:
            raise PySparkRuntimeError(
                f"Error parsing string schema: {_parse_error(declared, error)}"
            ) from error
    if not isinstance(declared, StructType):
        raise PySparkRuntimeError(
            f"Error initializing {kind} state: [FAILED_PARSE_STRUCT_TYPE] Failed parsing struct: {declared}. "
            "SQLSTATE: 22018"
        )
    return declared


def _parse_error(text: str, error: ValidationError) -> str:
    if not text.strip():
        return "[PARSE_EMPTY_STATEMENT] Syntax error, unexpected empty statement. SQLSTATE: 42617"
    if "expected a type" in str(error) and "got the end" not in str(error):
        return f"[UNSUPPORTED_DATATYPE] {error}. SQLSTATE: 0A000"
    return f"[PARSE_SYNTAX_ERROR] {error}. SQLSTATE: 42601"


def arrow_schema(struct: StructType, field: str) -> pa.Schema:
    """Return a schema as Arrow's.

    Raises:
        ValidationError: a field has a type that Arrow has not; the error names it.
    """
    return pa.schema([_arrow_field(each, field) for each in struct.fields])


def as_nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose fields may all be null."""
    return pa.schema([pa.field(each.name, each.type) for each in schema])


def as_nullable_throughout(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which all may be null, what is in lists, maps and structs, too."""
    return pa.schema([pa.field(each.name, _nullable_type(each.type)) for each in schema])


def _nullable_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_list(type_):
        return pa.list_(pa.field("item", _nullable_type(type_.value_type)))
    if pa.types.is_map(type_):
        value = pa.field("value", _nullable_type(type_.item_type))
        return pa.map_(_nullable_type(type_.key_type), value)
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(each.name, _nullable_type(each.type)) for each in type_])
    return type_


def _arrow_field(each: StructField, field: str) -> pa.Field:
    return pa.field(each.name, _arrow_type(each.dataType, f"{field}.{each.name}"), each.nullable)


def _arrow_type(type_: DataType, field: str) -> pa.DataType:
    plain = _PLAIN.get(type(type_))
    if plain is not None:
        return plain
    if isinstance(type_, DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, ArrayType):
        items = pa.field("item", _arrow_type(type_.elementType, field), type_.containsNull)
        return pa.list_(items)
    if isinstance(type_, MapType):
        values = pa.field("value", _arrow_type(type_.valueType, field), type_.valueContainsNull)
        return pa.map_(_arrow_type(type_.keyType, field), values)
    if isinstance(type_, StructType):
        return pa.struct([_arrow_field(each, field) for each in type_.fields])
    if isinstance(type_, StringType):  # With a collation, or a length.
        return pa.string()
    raise ValidationError(field, f"expected a type that Arrow has, got {type_.simpleString()}")


def _spark_field(each: pa.Field) -> StructField:
    return StructField(each.name, _spark_type(each.type), each.nullable)


def _spark_type(type_: pa.DataType) -> DataType:
    plain = _OF_ARROW.get(type_)
    if plain is not None:
        return plain()
    if pa.types.is_decimal(type_):
        return DecimalType(type_.precision, type_.scale)
    if pa.types.is_list(type_):
        return ArrayType(_spark_type(type_.value_type), type_.value_field.nullable)
    if pa.types.is_map(type_):
        return MapType(
            _spark_type(type_.key_type), _spark_type(type_.item_type), type_.item_field.nullable
        )
    assert pa.types.is_struct(type_), "a table schema has no other types"
    return StructType([_spark_field(each) for each in type_])
