/* When the C library gives memory back to the kernel.
 *
 * Runs in:  the daemon, at its start.
 *
 * glibc allocates a block above a threshold by mmap(2), and such memory goes back to the kernel when it is freed. The
 * first large block that is freed raises the threshold to its own size, up to 32 MiB. From then on blocks of that size
 * come from the heap, which gives back only its top. A daemon that has passed on one large file would keep some
 * multiples of the file's size for good. A threshold that was set by mallopt(3) doesn't move. */

#include "heap.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>

/* Have blocks from *threshold* bytes on go back to the kernel when they are freed.
 *
 * mallopt(3). Returns 0, -EINVAL for a threshold that is no int, or -ENOSYS where the allocator has no such setting:
 * another one may stand in for glibc's, a sanitizer's among them. */
int lw_heap_give_back(size_t threshold)
{
	if (threshold > INT_MAX)
		return -EINVAL;
#if defined(M_MMAP_THRESHOLD) && defined(M_TRIM_THRESHOLD)
	if (mallopt(M_MMAP_THRESHOLD, (int)threshold) && mallopt(M_TRIM_THRESHOLD, (int)threshold))
		return 0;
#endif
	return -ENOSYS;
}
