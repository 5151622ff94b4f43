#include "host.h"

#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif

/* Ask whether io_uring_setup(2) is allowed, without making a ring.
 *
 * Linux 5.1. The call has no parameters, so a kernel that allows it returns -EFAULT. -EPERM: forbidden by
 * kernel.io_uring_disabled or a filter. -ENOSYS: an older kernel, a kernel without io_uring, or a filter. */
int lw_io_uring_setup_refusal(void)
{
	return syscall(SYS_io_uring_setup, 1, NULL) < 0 ? -errno : 0;
}
