-- What every aircraft's state must be, computed from the file in one query, knowing nothing of journals or shards.
WITH legs AS (
  SELECT
    *,
    departs_at - LAG(departs_at + air_minutes) OVER (
      PARTITION BY aircraft ORDER BY departs_at, scheduled_at, carrier, flight, origin
    ) AS gap_minutes
  FROM flights
  WHERE NOT cancelled
), flown AS (
  SELECT
    aircraft,
    COUNT(*) AS legs,
    SUM(GREATEST(COALESCE(late_minutes, 0), 0)) AS late_minutes,
    COUNT_IF(gap_minutes >= 0) AS turnarounds,
    COALESCE(SUM(gap_minutes) FILTER (WHERE gap_minutes >= 0), 0) AS ground_minutes,
    COALESCE(MAX(gap_minutes) FILTER (WHERE gap_minutes >= 0), 0) AS longest_gap_minutes,
    COUNT_IF(late_minutes > 120) AS alerts
  FROM legs
  GROUP BY aircraft
), seen AS (
  SELECT aircraft, COUNT(*) AS flights FROM flights GROUP BY aircraft
)
SELECT
  aircraft,
  flights,
  COALESCE(legs, 0) AS legs,
  COALESCE(late_minutes, 0) AS late_minutes,
  COALESCE(turnarounds, 0) AS turnarounds,
  COALESCE(ground_minutes, 0) AS ground_minutes,
  COALESCE(longest_gap_minutes, 0) AS longest_gap_minutes,
  COALESCE(alerts, 0) AS alerts
FROM seen LEFT JOIN flown USING (aircraft)
