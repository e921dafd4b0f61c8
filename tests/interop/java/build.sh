#!/bin/bash
# Resolves Apache's jars and compiles the client programs, once each; what is there already is not touched.
# Output in build/rocketmq: cp-VERSION.txt (class path), classes-VERSION/NAME, interop-VERSION.jar and .jsa.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
peers=$here/../../bench/peers
build() { # VERSION MAIN_CLASS SOURCE...   into classes-VERSION/interop
  local main=$2; set -- "$1" "${@:3}"
  local out=$RMQ_BUILD/classes-$1/interop; local version=$1; shift
  local sources; sources=$(find "$@" -name '*.java')
  if [ ! -f "$out/.stamp" ] || [ -n "$(find "$@" -name '*.java' -newer "$out/.stamp")" ]; then
    mkdir -p "$out"
    javac -nowarn -Xlint:none -d "$out" -cp "$(cat "$RMQ_BUILD/cp-$version.txt")" $sources 2>&1 | { grep -v '^Note:' || true; }
    touch "$out/.stamp"
  fi
  archive "$version" "$out" "$RMQ_BUILD/interop-$version" "$main"
}
archive() { # VERSION CLASSES FILES MAIN_CLASS   A JVM that finds its classes loaded starts with half the processor time; they must come from a jar.
  [ "$3.jsa" -nt "$2/.stamp" ] && return
  rm -f "$3".*; local home; home=$(mktemp -d)
  jar cf "$3.jar" -C "$2" .
  java $(cat "$here/flags.txt") -Duser.home="$home" -Drocketmq.client.logRoot="$home" -XX:ArchiveClassesAtExit="$3.jsa" \
    -cp "$3.jar:$(cat "$RMQ_BUILD/cp-$1.txt")" "$4" 127.0.0.1:9 admin < /dev/null > /dev/null 2>&1 || rm -f "$3.jsa"
  rm -rf "$home"
}
set +euo pipefail   # env.sh is written for plain bash
. "$peers/env.sh" || exit 1
for name in bench-store bench-client; do rmq_compile "$peers/$name" "$RMQ_BUILD/classes-$RMQ_VERSION/$name" || exit 1; done
set -euo pipefail
rmq_proxy_path
[ -s "$RMQ_BUILD/cp-4.9.8.txt" ] || mvn -B -ntp -q -f "$here/pom-4.9.8.xml" dependency:build-classpath -Dmdep.outputFile="$RMQ_BUILD/cp-4.9.8.txt"
[ -s "$RMQ_BUILD/cp-grpc-5.2.0.txt" ] || mvn -B -ntp -q -f "$here/pom-grpc.xml" dependency:build-classpath -Dmdep.outputFile="$RMQ_BUILD/cp-grpc-5.2.0.txt"
build 5.5.0 Interop "$here/src" "$here/src-5" "$here/src-store"
build 4.9.8 Interop "$here/src" "$here/src-4.9"
build grpc-5.2.0 Grpc "$here/src-grpc" "$here/src/Json.java"
