#!/bin/sh
# The first process of a host in the lab. Its root is the file system of the real machine, read-only; its writes go to
# its own memory. PARTS, ADDRESS, PYTHON, AGENT and KEEP come from the kernel's command line. KEEP lists the directories
# that a host reads, separated by colons: they may be below a directory that gets a file system of its own here.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tmpfs none /mnt
number=0
for kept in $(echo "$KEEP" | tr : ' '); do
  number=$((number + 1))
  mkdir "/mnt/$number"
  mount --bind "$kept" "/mnt/$number"
done
mount -t tmpfs none /run
mount -t tmpfs none /tmp
mount -t tmpfs none /var/lib
number=0
for kept in $(echo "$KEEP" | tr : ' '); do
  number=$((number + 1))
  mkdir -p "$kept"
  mount --bind "/mnt/$number" "$kept"
done
mkdir -p /run/etc /run/lib /run/shared /run/export /var/lib/nfs/sm /var/lib/nfs/v4recovery /run/rpcbind /run/sendsigs.omit.d
cp -a /etc/. /run/etc/
cp "$PARTS/etc/netconfig" /run/etc/
echo '_rpc:x:0:0::/:/bin/false' >> /run/etc/passwd
echo '/run/export *(rw,sync,no_root_squash,insecure,no_subtree_check,fsid=0)' > /run/etc/exports
: > /var/lib/nfs/etab
: > /var/lib/nfs/rmtab
mount --bind /run/etc /etc
# The directory in which modprobe looks for a module, below /run; and kmod under the name modprobe, which selects its mode.
ln -s "$PARTS/usr/lib/uml/modules" /run/lib/modules
ln -s "$PARTS/bin/kmod" /run/modprobe
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
ip link set lo up
ip address add "$ADDRESS/24" dev vec0
ip link set vec0 up
exec "$PYTHON" "$AGENT" "$ADDRESS"
