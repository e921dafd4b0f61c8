#!/bin/bash
# Takes promtool and prometheus out of Debian's package into build/rocketmq/prometheus; nothing is installed. Where the package cannot
# be had, it says so and leaves the file `none` there: the tests that need it then check less.
set -euo pipefail
build=$(realpath -m "${RMQ_BUILD:-$(dirname "${BASH_SOURCE[0]}")/../../../build/rocketmq}")/prometheus
[ ! -x "$build/promtool" ] || exit 0
rm -rf "$build" && mkdir -p "$build" && cd "$build"
if command -v promtool > /dev/null && command -v prometheus > /dev/null; then
  ln -s "$(command -v promtool)" promtool; ln -s "$(command -v prometheus)" prometheus
elif command -v apt-get > /dev/null && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } > /dev/null 2>&1; then
  dpkg -x prometheus_*.deb package
  mv package/usr/bin/promtool package/usr/bin/prometheus . && rm -r package prometheus_*.deb
  ./promtool --version > /dev/null 2>&1
else
  echo "no package of Prometheus here: its rules and metrics are read by Python alone" >&2
  touch none
fi
