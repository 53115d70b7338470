"""What Prometheus is told: one registry a process, made at its composition root. Importing does nothing."""
