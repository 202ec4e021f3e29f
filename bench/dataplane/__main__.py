"""The data plane: `make bench BENCH=dataplane`, or parts, e.g. `python -m bench.dataplane messages latency broker lag`.

    messages    messages a second, and CPU seconds per million, by API, store and number of shards, each beside its
                bare loop; peers on the same rows
    latency     latency of a row at 25, 50, 75 and 90 % of the maximum rate
    broker      MB/s of appends and reads, each beside a bare gRPC stream
    history     MB/s and MB per CPU second of stored fragments, read where they lie and through the broker
    lag         memory of member and broker while a shard reads 10 GB that were waiting

Sums are checked after each run: a row that is lost or counted twice ends the benchmark.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from bench.dataplane import broker, history, lag, latency, messages
from bench.dataplane.app import STORES
from bench.dataplane.peers import PEERS
from bench.report import keep_logs_apart

BENCH = "dataplane"


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts that are named, or all."""
    options = _parser().parse_args(arguments)
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        _parser().error(f"no part {', '.join(sorted(unknown))}: choose of {', '.join(PARTS)}")
    keep_logs_apart()
    for part in options.parts or PARTS:
        PARTS[part](options)


def _messages(options: argparse.Namespace) -> None:
    plan = messages.MessagesPlan(
        options.rows, options.rounds, options.stores, options.peers, options.apis, options.shards
    )
    messages.run(BENCH, plan)


def _latency(options: argparse.Namespace) -> None:
    latency.run(BENCH, latency.LatencyPlan(options.seconds))


def _broker(options: argparse.Namespace) -> None:
    broker.run(BENCH, broker.BrokerPlan(options.broker_mb << 20, options.rounds))


def _history(options: argparse.Namespace) -> None:
    history.run(BENCH, history.HistoryPlan(options.broker_mb << 20, options.rounds))


def _lag(options: argparse.Namespace) -> None:
    lag.run(BENCH, lag.LagPlan(options.lag_gb))


PARTS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "messages": _messages,
    "latency": _latency,
    "broker": _broker,
    "history": _history,
    "lag": _lag,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.dataplane", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--rows", type=int, default=3_000_000, help="JSON messages a shard")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is printed")
    parser.add_argument("--stores", type=_names(STORES), default=list(STORES))
    parser.add_argument("--peers", type=_names(PEERS), default=list(PEERS), help="or ''")
    parser.add_argument("--apis", type=_names(dict.fromkeys(messages.APIS)), default=messages.APIS)
    parser.add_argument("--shards", type=int, nargs="*", default=messages.SHARDS)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load of `latency`")
    parser.add_argument("--broker-mb", type=int, default=512, help="MiB of each measurement")
    parser.add_argument("--lag-gb", type=float, default=10.0, help="GB that wait")
    return parser


def _names(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    """Return a parser of some of the names, separated by commas."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = set(names) - known.keys()
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: expected of {', '.join(known)}"
            )
        return names

    return parse


if __name__ == "__main__":
    main()
