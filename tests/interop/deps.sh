#!/bin/bash
# Fetches beforehand what tests and figures need beside Python packages, so that they run without a network:
# a JDK, Maven, Go, Node, Rust, curl, h2load and Chromium where the machine lacks them (apt), Apache's jars, the Go clients, and those of Node, Python and Rust for RocketMQ 5, promtool, and compiles the client programs.
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

# All at the same time: some compute, the others wait for downloads. Rust computes longest.
builds=()
for kind in rust java go go-grpc node python prometheus; do
  "$here/$kind/build.sh" &
  builds+=("$!:$kind")
done
failed=()
for build in "${builds[@]}"; do wait "${build%%:*}" || failed+=("${build#*:}"); done
[ ${#failed[@]} = 0 ] || { echo "deps: not built: ${failed[*]}" >&2; exit 1; }
