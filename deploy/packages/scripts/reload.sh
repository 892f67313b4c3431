#!/bin/sh
# The broker's unit gained or lost its drop-in. The broker itself goes on.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
