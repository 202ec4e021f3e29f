"""A protobuf class with a field of each kind that rows can fill, made without a compiler."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

_OPTIONAL, _REPEATED = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED


def _add(
    message: DescriptorProto, name: str, kind: int, *, label: int = _OPTIONAL, of: str | None = None
) -> None:
    message.field.add(
        name=name,
        number=len(message.field) + 1,
        type=kind,
        label=label,
        type_name=of,
    )


def _classes() -> Any:
    file = FileDescriptorProto(
        name="tests/order_messages.proto",
        package="broadsheet.tests",
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    order = file.message_type.add(name="Order")
    item = order.nested_type.add(name="Item")
    _add(item, "sku", FieldDescriptorProto.TYPE_STRING)
    _add(item, "count", FieldDescriptorProto.TYPE_INT32)
    entry = order.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    _add(entry, "key", FieldDescriptorProto.TYPE_STRING)
    _add(entry, "value", FieldDescriptorProto.TYPE_DOUBLE)
    _add(order, "uuid", FieldDescriptorProto.TYPE_BYTES)
    _add(order, "id", FieldDescriptorProto.TYPE_INT64)
    _add(order, "name", FieldDescriptorProto.TYPE_STRING)
    _add(
        order,
        "at",
        FieldDescriptorProto.TYPE_MESSAGE,
        of=f".{timestamp_pb2.Timestamp.DESCRIPTOR.full_name}",
    )
    _add(order, "tags", FieldDescriptorProto.TYPE_STRING, label=_REPEATED)
    message = FieldDescriptorProto.TYPE_MESSAGE
    _add(order, "items", message, label=_REPEATED, of=".broadsheet.tests.Order.Item")
    _add(order, "prices", message, label=_REPEATED, of=".broadsheet.tests.Order.PricesEntry")
    price = file.message_type.add(name="Price")
    _add(price, "uuid", FieldDescriptorProto.TYPE_BYTES)
    _add(price, "price", FieldDescriptorProto.TYPE_DOUBLE)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"broadsheet.tests.{name}"))
        for name in ("Order", "Price")
    )


Order, Price = _classes()
