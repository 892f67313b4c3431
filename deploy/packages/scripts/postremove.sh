#!/bin/sh
# /etc/rlmm and /var/lib/rlmm stay, also at a purge: an embedded log there is the only one.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
