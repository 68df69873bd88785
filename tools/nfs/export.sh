#!/bin/sh
# Make a host of the lab a file server: its kernel exports its own disk. PARTS is the directory of the programs.
set -e
export LD_LIBRARY_PATH="$PARTS/lib/x86_64-linux-gnu:$PARTS/usr/lib/x86_64-linux-gnu"
/run/modprobe -d /run ext4
mount -t ext4 /dev/ubda /run/export
chmod 777 /run/export
/run/modprobe -d /run nfsd
mount -t nfsd none /proc/fs/nfsd || true
# There are no earlier clients whose state a grace period could save.
echo 10 > /proc/fs/nfsd/nfsv4leasetime
echo 10 > /proc/fs/nfsd/nfsv4gracetime
"$PARTS/sbin/rpcbind" -w
"$PARTS/usr/sbin/exportfs" -ra
"$PARTS/usr/sbin/rpc.nfsd" 8
"$PARTS/usr/sbin/rpc.mountd"
