"""The ``darkroom`` command."""
