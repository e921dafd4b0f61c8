#!/bin/bash
# start-proxy.sh DATA_DIR NAMESRV GRPC_PORT
# Starts Apache's proxy in CLUSTER mode, before the brokers of a name server; returns when it serves gRPC.
# GRPC_PORT + 1 is used too. PROXY_HEAP (256m), JAVA_BROKER_FLAGS of the JVM. `stop.sh DATA_DIR kill9` ends it.
set -e
D=$(mkdir -p "$1" && cd "$1" && pwd); NAMESRV=$2; GRPC_PORT=$3
. "$(dirname "$0")/env.sh"
rmq_proxy_path || exit 1
mkdir -p "$D/bk" "$D/conf"
cat > "$D/conf/proxy.json" <<X
{"proxyMode": "CLUSTER", "grpcServerPort": $GRPC_PORT, "remotingListenPort": $((GRPC_PORT+1)), "rocketMQClusterName": "DefaultCluster", "namesrvAddr": "$NAMESRV"}
X
HEAP=${PROXY_HEAP:-256m}
nohup java -Xms$HEAP -Xmx$HEAP $JAVA_BROKER_FLAGS -Duser.home="$D/bk" -Djava.io.tmpdir="$D" -Drocketmq.home.dir="$D" $JOPENS -cp "$PROXY_CP" org.apache.rocketmq.proxy.ProxyStartup -pm CLUSTER -pc "$D/conf/proxy.json" >> "$D/bk.out" 2>&1 < /dev/null &
echo $! > "$D/bk.pid"
for i in $(seq 1 240); do
  if grep -q 'startup successfully' "$D/bk.out" && (exec 3<>/dev/tcp/127.0.0.1/$GRPC_PORT) 2>/dev/null; then
    echo "up: proxy 127.0.0.1:$GRPC_PORT (pid $(cat "$D/bk.pid")), data $D"; exit 0
  fi
  kill -0 "$(cat "$D/bk.pid")" 2>/dev/null || { echo "proxy ended:"; tail -20 "$D/bk.out"; exit 1; }
  sleep 0.25
done
echo "not up after 60 s"; exit 1
