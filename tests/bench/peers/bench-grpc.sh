#!/bin/bash
# bench-grpc.sh HOST:PORT TOPIC SCENARIO key=value...   (see bench-grpc/BenchGrpc.java)   a JSON line on stdout
. "$(dirname "$0")/env.sh"
CP=$(cat "$RMQ_BUILD/cp-grpc-5.2.0.txt") || exit 1   # by tests/interop/java/build.sh
rmq_compile "$RMQ_HERE/bench-grpc" "$RMQ_BUILD/classes-grpc-5.2.0/bench-grpc" || exit 1
exec java -Xms${JAVA_HEAP:-1g} -Xmx${JAVA_HEAP:-1g} -XX:+UseG1GC -Duser.home="$RMQ_CLIENT_HOME" -Drocketmq.log.root="$RMQ_CLIENT_HOME" -cp "$RMQ_BUILD/classes-grpc-5.2.0/bench-grpc:$CP" BenchGrpc "$@"
