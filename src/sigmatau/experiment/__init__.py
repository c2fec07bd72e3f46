"""Experiments: cells of a stream, a method, an order and a seed, run one or by the hundred."""
