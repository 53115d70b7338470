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
for service in asset-api s3-bridge-poller processor outbox-relay notifier; do
    compile "$service" pyproject.toml --extra "$service" --extra telemetry "${@}"
done
compile processor-heic pyproject.toml --extra processor --extra heic --extra telemetry "${@}"
compile sweeper pyproject.toml --extra sweeper "${@}"
# The `darkroom` command as a container: what sweeps, reconciles and tells how things are.
compile operations pyproject.toml --extra ops "${@}"
# A function's package is small; who wants its traces puts what the second file pins into it.
compile s3-bridge pyproject.toml --extra s3-bridge "${@}"
compile s3-bridge-telemetry pyproject.toml --extra s3-bridge --extra telemetry "${@}"
compile dev pyproject.toml --extra local --group dev "${@}"
echo uv | compile uv - "${@}"
# What makes the wheel in deploy/Dockerfile, and what stands in for the servers' images where none can be pulled.
printf "hatchling\nuv\n" | compile build - "${@}"
compile servers pyproject.toml --extra servers "${@}"
