#!/bin/bash
# Resolves Apache's jars and compiles the client programs, once each; what is there already is not touched.
# Output in build/rocketmq: cp-VERSION.txt (class path), classes-VERSION/NAME, interop-VERSION.jar and .jsa.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
peers=$here/../../bench/peers
build() { # VERSION JARS MAIN SOURCE...   into classes-VERSION/interop; JARS: how those begin whose classes are archived, MAIN: what then runs
  local jars=$2 main=$3; set -- "$1" "${@:4}"
  local out=$RMQ_BUILD/classes-$1/interop; local version=$1; shift
  local sources; sources=$(find "$@" "$here/src-archive" -name '*.java')
  if [ ! -f "$out/.stamp" ] || [ -n "$(find "$@" "$here/src-archive" -name '*.java' -newer "$out/.stamp")" ]; then
    mkdir -p "$out"
    javac -nowarn -Xlint:none -d "$out" -cp "$(cat "$RMQ_BUILD/cp-$version.txt")" $sources 2>&1 | { grep -v '^Note:' || true; }
    touch "$out/.stamp"
  fi
  archive "$version" "$out" "$RMQ_BUILD/interop-$version" "$jars" "$main"
}
# A JVM that finds its classes loaded and verified starts with half the processor time. They must come from jars, in the order of
# the class path: Apache's first, so that its servers use the same archive.
archive() { # VERSION CLASSES FILES JARS MAIN
  [ "$3.jsa" -nt "$2/.stamp" ] && [ "$3.jsa" -nt "$here/build.sh" ] && return
  rm -f "$3".*; local home; home=$(mktemp -d)
  jar cf "$3.jar" -C "$2" .
  java $(cat "$here/flags.txt") -Duser.home="$home" -Drocketmq.client.logRoot="$home" -XX:ArchiveClassesAtExit="$3.jsa" -cp "$(cat "$RMQ_BUILD/cp-$1.txt"):$3.jar" \
    Classes interop- $4 -- $5 < /dev/null > "$3.log" 2>&1 || rm -f "$3.jsa"
  rm -rf "$home"
}
set +euo pipefail   # env.sh is written for plain bash
. "$peers/env.sh" || exit 1
for name in bench-store bench-client; do rmq_compile "$peers/$name" "$RMQ_BUILD/classes-$RMQ_VERSION/$name" || exit 1; done
set -euo pipefail
rmq_proxy_path
[ -s "$RMQ_BUILD/cp-4.9.8.txt" ] || mvn -B -ntp -q -f "$here/pom-4.9.8.xml" dependency:build-classpath -Dmdep.outputFile="$RMQ_BUILD/cp-4.9.8.txt"
[ -s "$RMQ_BUILD/cp-grpc-5.2.0.txt" ] || mvn -B -ntp -q -f "$here/pom-grpc.xml" dependency:build-classpath -Dmdep.outputFile="$RMQ_BUILD/cp-grpc-5.2.0.txt"
build 5.5.0 "rocketmq-client rocketmq-common rocketmq-broker rocketmq-namesrv rocketmq-filter rocketmq-remoting rocketmq-tools rocketmq-store rocketmq-srvutil rocketmq-slf4j rocketmq-logback rocketmq-auth netty-common netty-buffer netty-handler-4 netty-transport-4 netty-transport-classes-epoll netty-codec-4 netty-codec-haproxy netty-resolver-4 fastjson2 guava- caffeine- javassist- commons-cli commons-validator" \
  "Interop 127.0.0.1:9 admin" "$here/src" "$here/src-5" "$here/src-store"
build 4.9.8 "rocketmq- netty-all fastjson logback- slf4j- commons-lang3 commons-cli commons-validator" "Interop 127.0.0.1:9 admin" "$here/src" "$here/src-4.9"
build grpc-5.2.0 rocketmq-client-java "Grpc 127.0.0.1:9 admin" "$here/src-grpc" "$here/src/Json.java" "$here/src/Host.java"
