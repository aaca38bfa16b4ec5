#!/bin/sh
# by_uring.sh PROGRAM ARGUMENT... - run a program that tests mounts, with mounts that get their requests by io_uring.
parameter=/sys/module/fuse/parameters/enable_uring
if [ "$(cat $parameter 2> /dev/null)" != Y ]; then
	echo "skipped: the kernel does not do FUSE over io_uring, or has it switched off ($parameter is not Y)"
	exit 77
fi
GAIAFS_TRANSPORT=uring exec "$@"
