#!/bin/bash
# Fetches Apache's Go client for RocketMQ 5 through the module proxy and builds the program into build/rocketmq/go-grpc-client.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out=$(realpath -m "${RMQ_BUILD:-../../../build/rocketmq}")/go-grpc-client
if [ ! -x "$out" ] || [ -n "$(find . -newer "$out" \( -name '*.go' -o -name 'go.*' \))" ]; then
  mkdir -p "$(dirname "$out")"
  GOFLAGS="-mod=readonly -buildvcs=false" go build -o "$out" .
fi
