/* Pages that each job writes: copied together, and not one by one by faults.
 *
 * Runs in:  the keeper, before its first runner that a request waits for.
 * Source:   io_uring_register(2); mm/memory.c, copy_present_page()
 *
 * A page fault with its copy costs 2.5 us, a page that clone3 copies 1.4. clone3 copies a page
 * at once that the kernel itself may be about to write (a "pinned" one), since the parent's must stay where it is. The
 * buffers of a ring are such pages. The ring is used for nothing else: it has no entry and nobody submits any. */

#include "hot.h"

#include "raw.h"

#include <linux/io_uring.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(struct lw_range) == sizeof(struct iovec), "ranges are given to the kernel as iovecs");

/* Have all later clones of this process copy *pages*. io_uring_setup(2), Linux 5.1. The descriptor is close-on-exec and
 * stays open: the pages are pinned as long as it is.
 *
 * False where the kernel or a limit (RLIMIT_MEMLOCK) forbids it; nothing is changed then. */
bool lw_hot_pin(const struct lw_range *pages, uint32_t count)
{
	struct io_uring_params params;

	memset(&params, 0, sizeof(params));
	const long ring = raw(SYS_io_uring_setup, 1, (long)&params, 0, 0, 0);
	if (ring < 0)
		return false;
	if (raw(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, (long)pages, count, 0) < 0) {
		raw(SYS_close, ring, 0, 0, 0, 0);
		return false;
	}
	return true;
}
