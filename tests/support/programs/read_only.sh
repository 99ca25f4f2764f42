# In a mount namespace of its own: $VOLUME is a small file system, everything else but /dev/shm is read-only; then what
# $MOUNT says, and the program.
mount -t tmpfs volume "$VOLUME" || exit 77
for place in /tmp /var/tmp "${TMPDIR:-/tmp}" "${HOME:-/}" /; do
    mountpoint -q "$place" && { mount -o remount,bind,ro "$place" || exit 77; }
done
for place in /tmp /var/tmp /usr/tmp; do
    touch "$place/probe.$$" 2>/dev/null && { rm "$place/probe.$$"; exit 77; }
done
eval "$MOUNT"
cd /
exec "$@"
