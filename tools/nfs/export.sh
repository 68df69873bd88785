#!/bin/sh
# Makes a host of the lab a file server: a disk of its own, exported by the kernel. PARTS says where the programs are.
set -e
export LD_LIBRARY_PATH="$PARTS/lib/x86_64-linux-gnu:$PARTS/usr/lib/x86_64-linux-gnu"
/run/modprobe -d /run ext4
mount -t ext4 /dev/ubda /run/export
chmod 777 /run/export
/run/modprobe -d /run nfsd
mount -t nfsd none /proc/fs/nfsd || true
# Nobody was there before us whose state a grace period could save.
echo 10 > /proc/fs/nfsd/nfsv4leasetime
echo 10 > /proc/fs/nfsd/nfsv4gracetime
"$PARTS/sbin/rpcbind" -w
"$PARTS/usr/sbin/exportfs" -ra
"$PARTS/usr/sbin/rpc.nfsd" 8
"$PARTS/usr/sbin/rpc.mountd"
