#!/usr/bin/env bash
# `make image`: an OCI image of packages, on a Debian without apt. No daemon of containers is needed. The same
# packages, on the same state of Debian's archive, give the same digest.
#
# build.sh DIRECTORY_OF_DEBS VERSION INTO DEBIAN_PACKAGES_BY_COMMA OUR_PACKAGE...
set -euo pipefail
packages=$1 version=$2 into=$3 debian=$4
shift 4
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1767225600} # that of the packages' files: 2026-01-01
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

hooks=()
hook() { hooks+=(--customize-hook="$1"); }
# The packages find their user and leave it as it is. One number for ever: to Kubernetes names mean nothing.
hook 'chroot "$1" groupadd --system --gid 10405 rlmm'
hook 'chroot "$1" useradd --system --key SYS_UID_MAX=10405 --uid 10405 --gid rlmm --home-dir /var/lib/rlmm --no-create-home --shell /usr/sbin/nologin rlmm'
for name in "$@"; do
  hook "upload $(echo "$packages/${name}_$version"-1_*.deb) /tmp/$name.deb"
done
hook 'chroot "$1" sh -c "dpkg --install /tmp/*.deb && rm /tmp/*.deb"'
hook 'chroot "$1" install -d -m 0750 -o rlmm -g rlmm /run/rlmm /var/lib/rlmm'
# Nobody becomes another user in it.
hook 'find "$1" -xdev -type f -perm /6000 -exec chmod ug-s {} +'
# They tell the time and the machine.
hook 'rm -rf "$1"/var/log/* "$1"/var/cache/* "$1"/var/lib/apt "$1"/etc/*- "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/etc/machine-id'

mmdebstrap --quiet --variant=essential --include="python3.11,passwd,ca-certificates${debian:+,$debian}" \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-include=/usr/share/doc/*/sbom.cdx.json' \
  --essential-hook='mkdir -p "$1/usr/share/man/man1"' `# the JRE's alternatives want it` \
  "${hooks[@]}" bookworm "$work/root.tar"

rm -rf "$into"
mkdir -p "$(dirname "$into")"
umoci init --layout "$into"
umoci new --image "$into:$version"
umoci raw add-layer --image "$into:$version" --history.created "$created" \
  --history.created_by "mmdebstrap; $*" "$work/root.tar"
umoci config --image "$into:$version" --no-history --created "$created" --author 'RLMM daemon' \
  --config.user 10405:10405 --config.workingdir /var/lib/rlmm \
  --config.env PATH=/usr/local/bin:/usr/bin:/bin --config.env LC_ALL=C.UTF-8 \
  --config.entrypoint /usr/bin/rlmm --config.cmd run --config.cmd --config --config.cmd /etc/rlmm/rlmm.toml \
  --config.stopsignal SIGTERM --config.volume /var/lib/rlmm --config.volume /run/rlmm \
  --config.label org.opencontainers.image.version="$version" \
  --config.label org.opencontainers.image.licenses=Apache-2.0 \
  --config.label org.opencontainers.image.title="$(basename "$into")"
umoci gc --layout "$into"
