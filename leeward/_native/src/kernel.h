/* The kernel's headers whose names Python uses: build_ffi.py reads there which. */
#pragma once

#include <fcntl.h>
#include <linux/mount.h>
#include <linux/seccomp.h>

/* Linux 5.12; older headers lack it. */
#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x00100000
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
/* Linux 5.19; Debian 12's headers have it, older ones don't. */
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
