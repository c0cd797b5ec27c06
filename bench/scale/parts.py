"""The parts of the question, by their names on the command line and in the JSON."""

from __future__ import annotations

CLUSTER, FAR, LATENCY, REQUESTS, FLEET, SILENCE = "cluster", "far", "latency", "requests", "fleet", "silence"
PARTS = (CLUSTER, FAR, LATENCY, REQUESTS, FLEET, SILENCE)
