#!/bin/sh
# Pins every dependency with hashes: one file a service, one for development, one for the installer itself.
# No file records a download address, so the same pins work against any index.
# usage: sh requirements/lock.sh path/to/uv [--upgrade]
set -eu
uv=$1
shift
compile() {
    out=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
        --output-file "requirements/$out.lock" "$@"
}
for service in asset-api s3-bridge s3-bridge-poller processor outbox-relay notifier sweeper; do
    compile "$service" pyproject.toml --extra "$service" "${@}"
done
compile processor-heic pyproject.toml --extra processor --extra heic "${@}"
compile dev pyproject.toml --extra local --group dev "${@}"
echo uv | compile uv - "${@}"
# What makes the wheel in deploy/Dockerfile, and what stands in for the servers' images where none can be pulled.
printf "hatchling\nuv\n" | compile build - "${@}"
compile servers pyproject.toml --extra servers "${@}"
