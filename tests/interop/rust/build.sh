#!/bin/bash
# Builds Apache's Rust client for RocketMQ 5 and the program into build/rocketmq/rust-client.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
build=$(realpath -m "${RMQ_BUILD:-../../../build/rocketmq}")
if [ ! -x "$build/rust-client" ] || [ -n "$(find . -newer "$build/rust-client" -type f)" ]; then
  mkdir -p "$build"
  cargo build --quiet --locked --target-dir "$build/rust-target"
  cp "$build/rust-target/debug/interop-rust" "$build/rust-client"
  rm -r "$build/rust-target"   # 600 MB
fi
