#!/bin/bash
# Fetches beforehand what tests and figures need beside Python packages, so that they run without a network:
# a JDK, Maven, Go, Node, Rust, curl, h2load and Chromium where the machine lacks them (apt), Apache's jars, the Go clients, and those of Node, Python and Rust for RocketMQ 5, and compiles the client programs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

wanted=()
have() { command -v "$1" > /dev/null; }
have javac || wanted+=(default-jdk-headless)
have curl || wanted+=(curl)
have mvn || wanted+=(maven)
have go || wanted+=(golang-go)
have npm || wanted+=(nodejs npm)
have cargo || wanted+=(cargo)
have h2load || wanted+=(nghttp2-client)
have chromium || have chromium-browser || have google-chrome || wanted+=(chromium)
if [ ${#wanted[@]} -gt 0 ]; then
  as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo)
  echo "installing ${wanted[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq < /dev/null
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${wanted[@]}" < /dev/null > /dev/null
fi

"$here/java/build.sh"
"$here/go/build.sh"
"$here/go-grpc/build.sh"
"$here/node/build.sh"
"$here/python/build.sh"
"$here/rust/build.sh"
