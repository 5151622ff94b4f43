/* Replaces private memory by a private mapping of a memory file with the same content.
 *
 * Runs in:  the zygote, before its first keeper; lw_snapshot_drop in the keeper.
 * Source:   mm/memory.c, vma_needs_copy(); mmap(2), memfd_create(2), fcntl(2) on seals
 *           pagemap(5): Documentation/admin-guide/mm/pagemap.rst
 *
 * Theory of operation. If the caller has a private page in a mapping, clone3 copies the page table entries of the whole
 * mapping. For a mapping of a file without private pages it copies none, and a later fault maps the page and its
 * neighbours. A job touches a tenth of the pages that the zygote has written. Pages that a job writes are copied, as
 * before. Nobody can write the file itself: it is sealed before it is mapped, and no descriptor of it stays open.
 *
 * Between the copy of a page to the file and the mapping of the file nothing may write that page. So the caller has one
 * thread, and leaves out its stack and its thread's storage, in which the kernel writes (rseq). No function of libc is
 * called: a sanitizer's would write its own data. */

#include "snapshot.h"

#include "raw.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRY 8
#define ENTRIES 512
#define PRESENT (1ULL << 63)
#define SWAPPED (1ULL << 62)
#define OF_FILE (1ULL << 61)

/* An address inside the calling thread's storage. */
uint64_t lw_thread_storage(void)
{
	return (uint64_t)(uintptr_t)__builtin_thread_pointer();
}

/* Map *file*, an empty memory file that can be sealed, in place of *parts*, with their content.
 *
 * Linux 3.17. F_SEAL_WRITE allows private mappings. Returns 0; 1 if the file can't hold the content or can't be sealed,
 * and then nothing is changed; -errno if a part could not be mapped, and then its memory may be lost. */
__attribute__((no_sanitize("address", "undefined", "thread")))
int lw_snapshot_take(int file, const struct lw_snapshot_part *parts, uint32_t count)
{
	off_t at = 0;

	for (uint32_t i = 0; i < count; i++) {
		const char *const start = (const char *)(uintptr_t)parts[i].pages.start;
		const uint64_t size = parts[i].pages.size;

		for (uint64_t done = 0; done < size;) {
			const long some = raw(SYS_pwrite64, file, (long)(start + done), (long)(size - done),
					      at + (off_t)done, 0);

			if (some <= 0)
				return 1;
			done += (uint64_t)some;
		}
		at += (off_t)size;
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

/* Remove the page table entries of unchanged pages from this process, so that its clones don't get copies of them.
 *
 * Pages that the process has written stay. Without a map in *taken* nothing is done. Closes the map. */
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
