"""What every service needs to run: settings, logs, connections, health, an orderly end. Knows nothing of assets."""
