#!/bin/bash
# Installs Apache's Node client for RocketMQ 5, and the program, into build/rocketmq/node-client.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out=$(realpath -m "${RMQ_BUILD:-../../../build/rocketmq}")/node-client
if [ ! -e "$out/.stamp" ] || [ -n "$(find . -newer "$out/.stamp" -type f)" ]; then
  mkdir -p "$out"
  cp package.json package-lock.json *.js "$out"
  (cd "$out" && npm ci --silent --no-audit --no-fund --ignore-scripts)
  touch "$out/.stamp"
fi
