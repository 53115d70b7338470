"""Chaos: the whole of Darkroom under load while everything is killed, and a check of every invariant afterwards."""
