#!/bin/bash
# Fetches the Go v2 client through the module proxy and builds the client program into build/rocketmq/go-client.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out=$(realpath -m "${RMQ_BUILD:-../../../build/rocketmq}")/go-client
if [ ! -x "$out" ] || [ -n "$(find . -newer "$out" \( -name '*.go' -o -name 'go.*' \))" ]; then
  mkdir -p "$(dirname "$out")"
  GOFLAGS="-mod=readonly -buildvcs=false" go build -o "$out" .
fi
