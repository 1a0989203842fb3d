"""Why a run does not learn: measurements of its rows, rules over its statistics, probes, and the report."""
