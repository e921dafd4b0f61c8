#!/bin/bash
# Builds Apache's Rust client for RocketMQ 5 and the program into build/rocketmq/rust-client. That takes two minutes of processor
# time, so it is done again only if the sources or the compiler are others: what was built is kept in the user's cache, for other
# checkouts too, as Go keeps what it built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
build=$(realpath -m "${RMQ_BUILD:-../../../build/rocketmq}")
sources=$({ cat Cargo.toml Cargo.lock src/main.rs; rustc --version --verbose; getconf GNU_LIBC_VERSION; } | sha256sum | cut -d ' ' -f 1)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/headpond/rust-client-$sources
if [ ! -x "$build/rust-client" ] || [ "$sources" != "$(cat "$build/rust-client.sum" 2> /dev/null)" ]; then
  mkdir -p "$build" "$(dirname "$kept")"
  if [ ! -x "$kept" ]; then
    cargo build --quiet --locked --target-dir "$build/rust-target"
    cp "$build/rust-target/debug/interop-rust" "$kept.$$" && mv "$kept.$$" "$kept"
    rm -r "$build/rust-target"   # 600 MB
  fi
  cp "$kept" "$build/rust-client"
  echo "$sources" > "$build/rust-client.sum"
fi
