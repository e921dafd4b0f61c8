#!/bin/bash
# Builds Apache's Rust client for RocketMQ 5 and the program into build/rocketmq/rust-client. That takes minutes, so it is done
# again only if the sources have other content; their times change with each checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
build=$(realpath -m "${RMQ_BUILD:-../../../build/rocketmq}")
sources=$(cat Cargo.toml Cargo.lock src/main.rs | sha256sum)
if [ ! -x "$build/rust-client" ] || [ "$sources" != "$(cat "$build/rust-client.sum" 2> /dev/null)" ]; then
  mkdir -p "$build"
  cargo build --quiet --locked --target-dir "$build/rust-target"
  cp "$build/rust-target/debug/interop-rust" "$build/rust-client"
  rm -r "$build/rust-target"   # 600 MB
  echo "$sources" > "$build/rust-client.sum"
fi
