"""See an installation, explain it and mend it: what the ``darkroom`` command does once the services run."""
