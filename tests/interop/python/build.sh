#!/bin/bash
# Installs Apache's Python client for RocketMQ 5 into an environment of its own, build/rocketmq/python-client.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out=$(realpath -m "${RMQ_BUILD:-../../../build/rocketmq}")/python-client
if [ ! -e "$out/.stamp" ] || [ requirements.txt -nt "$out/.stamp" ]; then
  python3 -m venv "$out"
  "$out/bin/python" -m pip install -q --disable-pip-version-check -r requirements.txt
  touch "$out/.stamp"
fi
