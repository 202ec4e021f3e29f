"""Kafka values whose schemas are in a Schema Registry, as sources and as outputs (extra `[schema-registry]`).

    REGISTRY = SchemaRegistry({"url": "http://registry:8081"})
    SOURCE = KafkaSource("orders", REGISTRY.avro("orders"), {"bootstrap.servers": "broker:9092"})
    TOTALS = KafkaOutput("totals", CLUSTER, REGISTRY.avro("totals", schema=TOTAL), key="user")

A value begins with the id of its schema, or a header has it; the registry is asked for each id, and each schema, once.
"""
