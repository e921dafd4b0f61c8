# Sourced by the other scripts: resolves the jars once per version, sets CP.
# RMQ_VERSION (default 5.5.0), RMQ_BUILD (default build/rocketmq of the checkout): jar list and compiled classes.
RMQ_VERSION=${RMQ_VERSION:-5.5.0}
RMQ_HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
RMQ_BUILD=${RMQ_BUILD:-$RMQ_HERE/../../../build/rocketmq}
mkdir -p "$RMQ_BUILD" && RMQ_BUILD=$(cd "$RMQ_BUILD" && pwd)
RMQ_CPFILE=$RMQ_BUILD/cp-$RMQ_VERSION.txt
if [ ! -s "$RMQ_CPFILE" ]; then
  mvn -B -ntp -q -f "$RMQ_HERE/pom.xml" -Drocketmq.version="$RMQ_VERSION" dependency:build-classpath -Dmdep.outputFile="$RMQ_CPFILE" || return 1
fi
CP=$(cat "$RMQ_CPFILE")
# rmq_proxy_path : the class path of Apache's proxy, with a broker in it, into PROXY_CP
rmq_proxy_path() {
  local file=$RMQ_BUILD/cp-proxy-$RMQ_VERSION.txt
  [ -s "$file" ] || mvn -B -ntp -q -f "$RMQ_HERE/pom-proxy.xml" -Drocketmq.version="$RMQ_VERSION" dependency:build-classpath -Dmdep.outputFile="$file" || return 1
  PROXY_CP=$(cat "$file")
}
# rmq_compile SRC_DIR OUT_DIR : javac when any source is newer than the stamp
rmq_compile() {
  if [ ! -f "$2/.stamp" ] || [ -n "$(find "$1" -name '*.java' -newer "$2/.stamp")" ]; then
    mkdir -p "$2" && javac -nowarn -Xlint:-options -d "$2" -cp "$CP" $(find "$1" -name '*.java') 2>&1 | grep -v '^Note:' ; [ "${PIPESTATUS[0]}" = 0 ] && touch "$2/.stamp"
  fi
  [ -f "$2/.stamp" ]
}
# a quiet logback configuration for client programs
RMQ_LOGCONF=$RMQ_BUILD/client-logback.xml
[ -f "$RMQ_LOGCONF" ] || cat > "$RMQ_LOGCONF" <<'X'
<configuration>
  <appender name="f" class="ch.qos.logback.core.FileAppender"><file>${user.home}/client.log</file><encoder><pattern>%d %p %t %logger - %m%n</pattern></encoder></appender>
  <root level="${RMQ_LOG_LEVEL:-WARN}"><appender-ref ref="f"/></root>
</configuration>
X
RMQ_CLIENT_HOME=${RMQ_CLIENT_HOME:-$RMQ_BUILD/client-home}
mkdir -p "$RMQ_CLIENT_HOME"
JOPENS="--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED --add-exports=java.base/sun.nio.ch=ALL-UNNAMED --add-opens=java.base/jdk.internal.misc=ALL-UNNAMED"
JCLIENT="-Duser.home=$RMQ_CLIENT_HOME -Drmq.logback.configurationFile=$RMQ_LOGCONF -Drocketmq.client.logUseSlf4j=false $JOPENS"
