#!/bin/bash
# bench-store-all.sh WORK_DIR > results.jsonl     every measurement alone under the lock
cd "$(dirname "$0")"; W=${1:-build/bench}; L="flock ${BENCH_LOCK:-/tmp/bench.lock}"; mkdir -p $W
. ./env.sh; rmq_compile "$RMQ_HERE/bench-store" "$RMQ_BUILD/classes-$RMQ_VERSION/bench-store"
b() { $L ./bench-store.sh "$@"; }
rm -rf $W/*
b $W/w put n=300000 size=100 run=w >/dev/null; rm -rf $W/w      # page cache / disk warm-up
for size in 100 1024; do
  b $W/a$size put n=1000000 size=$size warmup=100000
  b $W/s$size put n=1000000 size=$size flush=SYNC_FLUSH maxsec=10 warmup=1000; rm -rf $W/s$size
done
b $W/s64 put n=2000000 size=1024 flush=SYNC_FLUSH threads=64 maxsec=10 warmup=1000; rm -rf $W/s64
b $W/a8 put n=1000000 size=1024 threads=8 warmup=100000; rm -rf $W/a8
b $W/ni put n=1000000 size=100 noindex=1 warmup=100000; rm -rf $W/ni
b $W/b batch n=1000000 size=1024; b $W/b batch n=1000000 size=1024; rm -rf $W/b
b $W/a1024 recover; b $W/a1024 read; b $W/a1024 read decode=yes rounds=1; b $W/a1024 read per=1 rounds=1; b $W/a1024 query n=1000000
b $W/a100 recover; b $W/a100 read; b $W/a100 query n=1000000; rm -rf $W/a100
b $W/a1024 put n=1 size=10 run=x end=halt >/dev/null; b $W/a1024 recover; b $W/a1024 recover
rm -rf $W/a1024
b $W/k put n=850000 size=1024 end=halt; b $W/k recover end=halt; sleep 1; b $W/k recover; b $W/k recover
rm -rf $W/k
