/* Replaces private memory by a private mapping of a memory file with the same content; has clones copy hot pages at once.
 *
 * Runs in:  the zygote, before its first keeper; lw_snapshot_drop and lw_hot_pin in the keeper.
 * Source:   mm/memory.c, vma_needs_copy(), copy_present_page(); memfd_create(2), fcntl(2) on seals; io_uring_register(2)
 *           pagemap(5): Documentation/admin-guide/mm/pagemap.rst; madvise(2), MADV_COLLAPSE, Linux 6.1
 *
 * Theory of operation. If the caller has a private page in a mapping, clone3 copies the page table entries of the whole
 * mapping. For a mapping of a file without private pages it copies none, and a later fault maps the page and its
 * neighbours. A job touches a tenth of the pages that the zygote has written. Pages that a job writes are copied, as
 * before. Nobody can write the file itself: it is sealed before it is mapped, and no descriptor of it stays open.
 *
 * Between the copy of a page and the mapping of the file nothing may write it. So the caller has one thread, and leaves out
 * its stack and its thread's storage, in which the kernel writes (rseq). No function of libc is called: a sanitizer's would
 * write its own data. */

#include "snapshot.h"

#include "raw.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Where pages have 4 KiB. Where a huge page is larger the kernel refuses, and the file stays as it is. */
#define HUGE_PAGE (2L << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define ENTRY 8
#define ENTRIES 512
#define PRESENT (1ULL << 63)
#define SWAPPED (1ULL << 62)
#define OF_FILE (1ULL << 61)

uint64_t lw_thread_storage(void)
{
	return (uint64_t)(uintptr_t)__builtin_thread_pointer();
}

/* Make huge pages of the *size* bytes from *from* on of a memory file, which has no content there, as far as they fill such.
 * A fault maps sixteen neighbours in either case, but then maps and unmaps them as a group; and making them, writing them
 * and freeing them takes a part of the time. The kernel makes no huge page of nothing, so each gets a page first. Linux 6.1,
 * and room for huge pages; -errno without. *from* is a multiple of 2 MiB. */
__attribute__((no_sanitize("address", "undefined", "thread")))
int lw_huge_pages(int file, uint64_t from, uint64_t size)
{
	const long whole = (long)size & ~(HUGE_PAGE - 1);
	const long room = whole + HUGE_PAGE;

	if (!whole)
		return 0;
	const long at = raw6(SYS_mmap, 0, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at < 0 && at > -4096)
		return (int)at;
	const long aligned = (at + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	for (long each = 0; each < whole; each += HUGE_PAGE)
		raw(SYS_fallocate, file, 0, (long)from + each, 1, 0);
	long done = raw6(SYS_mmap, aligned, whole, PROT_READ, MAP_SHARED | MAP_FIXED, file, (long)from);
	if (done == aligned)
		done = raw(SYS_madvise, aligned, whole, MADV_COLLAPSE, 0, 0);
	raw(SYS_munmap, at, room, 0, 0, 0); /* a file that is mapped and can be written could not be sealed */
	return (int)done;
}

/* Map *file*, an empty memory file that can be sealed, in place of *parts*, with their content. F_SEAL_WRITE allows private
 * mappings. Returns 0; 1 if the file can't hold the content or can't be sealed, and then nothing is changed; -errno if a
 * part could not be mapped, and then its memory may be lost. */
__attribute__((no_sanitize("address", "undefined", "thread")))
int lw_snapshot_take(int file, const struct lw_snapshot_part *parts, uint32_t count, bool huge)
{
	uint64_t size = 0;
	off_t at = 0;

	for (uint32_t i = 0; i < count; i++)
		size += parts[i].pages.size;
	if (huge && raw(SYS_ftruncate, file, (long)size, 0, 0, 0) >= 0)
		lw_huge_pages(file, 0, size);
	for (uint32_t i = 0; i < count; i++) {
		const char *const start = (const char *)(uintptr_t)parts[i].pages.start;
		const uint64_t wanted = parts[i].pages.size;

		for (uint64_t done = 0; done < wanted;) {
			const long some = raw(SYS_pwrite64, file, (long)(start + done), (long)(wanted - done),
					      at + (off_t)done, 0);

			if (some <= 0)
				return 1;
			done += (uint64_t)some;
		}
		at += (off_t)wanted;
	}
	if (raw(SYS_fcntl, file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL, 0, 0) < 0)
		return 1;
	at = 0;
	for (uint32_t i = 0; i < count; i++) {
		const long got = raw6(SYS_mmap, (long)parts[i].pages.start, (long)parts[i].pages.size,
				      parts[i].protection, MAP_PRIVATE | MAP_FIXED, file, at);

		if (got < 0 && got > -4096)
			return (int)got;
		at += (off_t)parts[i].pages.size;
	}
	return 0;
}

/* Whether the page is unchanged from the file, so that a later fault would find the same content. */
static bool is_the_files(uint64_t entry)
{
	return entry & PRESENT ? entry & OF_FILE : !(entry & SWAPPED);
}

/* Remove the page table entries of unchanged pages from this process, so that its clones don't get copies of them. Does
 * nothing without a map in *taken*, which it closes. */
void lw_snapshot_drop(const struct lw_snapshot_parts *taken)
{
	uint64_t entries[ENTRIES];
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	if (taken->map < 0)
		return;
	for (uint32_t i = 0; i < taken->count; i++) {
		uint64_t first = taken->parts[i].pages.start / page, left = taken->parts[i].pages.size / page;

		while (left) {
			const uint64_t some = left < ENTRIES ? left : ENTRIES;
			uint64_t since = 0;

			if (pread(taken->map, entries, ENTRY * some, (off_t)(first * ENTRY)) != (ssize_t)(ENTRY * some))
				left = some; /* no information: go on with the next part */
			else
				for (uint64_t n = 0; n <= some; n++) {
					if (n < some && is_the_files(entries[n]))
						continue;
					if (n > since)
						madvise((void *)(uintptr_t)((first + since) * page), (n - since) * page, MADV_DONTNEED);
					since = n + 1;
				}
			first += some;
			left -= some;
		}
	}
	close(taken->map);
}

_Static_assert(sizeof(struct lw_range) == sizeof(struct iovec), "ranges are given to the kernel as iovecs");

/* Have all later clones of this process copy *pages*: a page fault with its copy costs 2.5 us, a page that clone3 copies
 * 1.4. clone3 copies a page at once that the kernel itself may be about to write (a "pinned" one), such as the buffers of
 * a ring, which is used for nothing else, and stays open. io_uring_setup(2), Linux 5.1. False, and nothing is changed,
 * where the kernel or a limit (RLIMIT_MEMLOCK) forbids it. */
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
