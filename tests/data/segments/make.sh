#!/bin/sh
# Makes the test data beside it anew: starts a real Kafka broker four times (each start is a new
# leader epoch), fills two topics, lets it tier them, and takes the files and the metadata.
# Needs a JDK (17 or later) and Maven; about two minutes. Port P is the broker's, P + 1 the controller's.
#   [KAFKA_LIBS=DIR] [PORT=P] ./make.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
libs=${KAFKA_LIBS:-$here/target/libs}
port=${PORT:-19292}
if ! ls "$libs"/kafka-storage-[0-9]*.jar >/dev/null 2>&1; then
  mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$libs" -DincludeScope=runtime
fi
work=$(mktemp -d)
data=$work/data
mkdir -p "$data" "$work/classes" "$work/out"
broker=
stop() {
  [ -z "$broker" ] || { kill "$broker" 2>/dev/null || true; wait "$broker" || true; broker=; }
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

tool() {
  java -Xmx256m -XX:+UseSerialGC -Dloglevel=ERROR -Dlog4j2.configurationFile="$here/log4j2.properties" -cp "$work/classes:$libs/*" "$@"
}
start() {
  java -Xmx512m -Dloglevel=INFO -Dlog4j2.configurationFile="$here/log4j2.properties" \
    -cp "$libs/*" kafka.Kafka "$data/server.properties" 2>"$work/broker.log" &
  broker=$!
  tries=0
  until grep -q 'Kafka Server started' "$work/broker.log"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 300 ] || ! kill -0 "$broker" 2>/dev/null; then
      tail -20 "$work/broker.log" >&2
      exit 1
    fi
    sleep 0.2
  done
}
# Waits until the metadata topic tells of at least $1 deleted segments.
await_deleted() {
  tries=0
  until tool Collect "127.0.0.1:$port" metadata "$work/out" && [ "$(deleted)" -ge "$1" ]; do
    tries=$((tries + 1))
    [ "$tries" -le 20 ] || { echo "only $(deleted) segments deleted" >&2; exit 1; }
    sleep 1
  done
}
deleted() {
  grep -c '"remoteLogSegmentState":3' "$work/out/metadata.jsonl" || true
}

javac -d "$work/classes" -cp "$libs/*" "$here/../golden/RecordJson.java" "$here/Produce.java" "$here/Collect.java"
sed "s#@DIR@#$data#g; s#@PORT@#$port#g; s#@CONTROLLER_PORT@#$((port + 1))#g" "$here/server.properties.in" >"$data/server.properties"
tool kafka.tools.StorageTool format -t 5L6g3nShT-eMCtK--X86sw -c "$data/server.properties" >/dev/null

for phase in 0 1 2 3; do
  start
  [ "$phase" -gt 0 ] || tool Produce "127.0.0.1:$port" create
  tool Produce "127.0.0.1:$port" fill "$phase"
  tool Produce "127.0.0.1:$port" await "$data/log" # a copy cut short by the stop would stay behind
  [ "$phase" -eq 3 ] || stop
done
tool Collect "127.0.0.1:$port" segments "$data" "$work/out"
tool Produce "127.0.0.1:$port" retire
await_deleted 1
tool Produce "127.0.0.1:$port" drop
await_deleted "$(grep -c '"RemoteLogSegmentMetadataRecord".*"name":"carts"' "$work/out/metadata.jsonl")"
stop

rm -rf "$here"/orders-0 "$here"/orders-1
cp -R "$work"/out/. "$here"/
(cd "$here" && du -ch orders-0 orders-1 manifest.json metadata.jsonl lookups.jsonl | tail -1)
