#!/bin/sh
# After the files are there, at an installation and at an upgrade, of deb and rpm alike.
set -e

# systemd's own tools know the files of this package; without them, the same by hand.
if command -v systemd-sysusers >/dev/null 2>&1; then
  systemd-sysusers rlmm-daemon.conf
else
  getent group kafka >/dev/null || groupadd --system kafka
  getent passwd kafka >/dev/null || useradd --system --gid kafka --home-dir / --no-create-home --shell /usr/sbin/nologin kafka
  getent group rlmm >/dev/null || groupadd --system rlmm
  getent passwd rlmm >/dev/null || useradd --system --gid rlmm --home-dir /var/lib/rlmm --no-create-home --shell /usr/sbin/nologin rlmm
  usermod -a -G kafka rlmm
fi
if command -v systemd-tmpfiles >/dev/null 2>&1; then
  systemd-tmpfiles --create rlmm-daemon.conf
else
  install -d -m 0750 -o root -g rlmm /etc/rlmm
fi

if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # A daemon that runs ends its work, and goes on as the new version; one that does not stays so.
  systemctl try-restart rlmm-daemon.service
fi
if [ ! -e /etc/rlmm/rlmm.toml ]; then
  echo "rlmm-daemon: to set it up beside the broker, run: rlmm setup"
fi
