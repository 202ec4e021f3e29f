"""Settings that would end members, or start two of one, are refused by name."""

from __future__ import annotations

import pytest

from broadsheet.spark_bridge.errors import SparkConfError
from broadsheet.spark_bridge.session import check_conf, recommended_conf


def test_recommended_conf_passes_the_check() -> None:
    """What we recommend must be what we accept."""
    check_conf(recommended_conf())


def test_check_conf_spark_defaults_names_the_setting_and_the_value_needed() -> None:
    """Spark's own default of four failures ends a cluster within days: the error says which setting to mend."""
    with pytest.raises(
        SparkConfError, match=r"spark\.task\.maxFailures is 4, members need at least 1000"
    ):
        check_conf({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.task.maxFailures", "999"),
        ("spark.task.maxFailures", "many"),
        ("spark.python.worker.reuse", "true"),
        ("spark.speculation", "true"),
        ("spark.speculation", "TRUE"),
    ],
)
def test_check_conf_unfit_value_is_refused(name: str, value: str) -> None:
    """Each setting is checked on its own."""
    with pytest.raises(SparkConfError) as caught:
        check_conf({**recommended_conf(), name: value})

    assert (caught.value.name, caught.value.value) == (name, value)
