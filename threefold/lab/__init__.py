"""Races, reports, benchmarks, recipes and studies."""
