#!/bin/sh
# deb says "remove", rpm how many versions stay. At an upgrade the daemon goes on.
set -e
case "$1" in
  remove | 0) ;;
  *) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
  systemctl disable --now rlmm-daemon.service rlmm-reconcile.timer 2>/dev/null || true
fi
