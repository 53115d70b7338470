"""What others build on: contracts, the asset, the inbox, the outbox, and what services share to run."""
