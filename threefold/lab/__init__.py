"""Races, recipes, benchmarks and reports; for now the demonstration."""
