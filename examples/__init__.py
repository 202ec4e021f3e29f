"""Programs that show how applications are written; the tutorials run them."""

from broadsheet.runtime.libraries import tell_missing_libraries

tell_missing_libraries(
    {
        "broadsheet.examples.enrich.run": "spark",
        "broadsheet.examples.features.skew": "keyed",
        "broadsheet.examples.flights.demo": "demo",
        "broadsheet.examples.sessions.bid": "keyed",
    }
)
