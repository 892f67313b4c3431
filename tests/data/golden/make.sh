#!/bin/sh
# Rewrites records.jsonl, tolerated.jsonl, poison.jsonl and partitions.jsonl beside it with the
# classes of Apache Kafka (version in ../segments/pom.xml). Needs a JDK (17 or later) and Maven.
# KAFKA_LIBS=DIR takes the jars from DIR; otherwise Maven fetches them into ../segments/target.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
libs=${KAFKA_LIBS:-$here/../segments/target/libs}
if ! ls "$libs"/kafka-storage-[0-9]*.jar >/dev/null 2>&1; then
  mvn -q -B -f "$here/../segments/pom.xml" dependency:copy-dependencies \
    -DoutputDirectory="$libs" -DincludeScope=runtime
fi
classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
javac -d "$classes" -cp "$libs/*" "$here/RecordJson.java" "$here/Generate.java"
java -cp "$classes:$libs/*" -Dlog4j2.configurationFile="$here/../segments/log4j2.properties" \
  -Dfile.encoding=UTF-8 Generate "$here"
