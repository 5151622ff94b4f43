/* When the C library gives memory back to the kernel; puts CPython's arenas side by side, at known addresses.
 *
 * Runs in:  the daemon, at its start; the arenas also in the zygote, from its first line until it has imported everything.
 * Source:   PyObject_SetArenaAllocator: docs.python.org/3/c-api/memory.html; Objects/obmalloc.c;
 *           Documentation/admin-guide/mm/transhuge.rst
 *
 * glibc allocates a block above a threshold by mmap(2), and such memory goes back when it is freed. But the first one that
 * is freed raises the threshold to its own size, up to 32 MiB, and from then on blocks of that size come from the heap,
 * which gives back only its top. A threshold that was set by mallopt(3) doesn't move.
 *
 * CPython allocates memory for small objects in arenas, by mmap, which the kernel places between libraries. Here each is
 * the next piece of one reservation, so that they can be told from memory that a library has mapped. In the zygote the
 * interpreter's own allocator is set again afterwards; its munmap works for these arenas, too.
 *
 * In the daemon the reservation has huge pages: after each sleep of its thread few of its addresses are left in the
 * processor's translation buffers. The memory of a freed arena goes back to the kernel, and the next arena gets its
 * piece. When all pieces are in use, arenas come from the interpreter's own allocator.
 *
 * CPython calls both functions of an arena allocator with the interpreter's lock held. */

#include "heap.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdint.h>
#include <sys/mman.h>

/* Have blocks from *threshold* bytes on go back to the kernel when they are freed. Returns 0, -EINVAL for a threshold that
 * is no int, or -ENOSYS where the allocator has no such setting: a sanitizer's, for instance. */
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

/* Of x86_64, and of aarch64 with pages of 4 KiB. */
#define LW_HUGE_PAGE ((size_t)2 << 20)
/* An arena has 1 MiB; 256 KiB before CPython 3.10. */
#define LW_MOST_VACANT 64

/* Same as PyObjectArenaAllocator, which hasn't changed since CPython 3.4 and isn't part of the limited API. */
struct arena_allocator {
	void *context;
	void *(*take)(void *context, size_t size);
	void (*give)(void *context, void *at, size_t size);
};

/* PyObject_GetArenaAllocator and PyObject_SetArenaAllocator: looked up, since a module for any version of CPython can't name
 * them. */
static void (*get_arenas)(struct arena_allocator *allocator), (*set_arenas)(struct arena_allocator *allocator);

static struct arena_allocator own;
static char *first, *next, *end;
static bool huge;
/* Pieces of a reservation with huge pages whose arenas were freed. */
static struct lw_range vacant[LW_MOST_VACANT];
static size_t vacant_count;

static void *take(void *context, size_t size)
{
	(void)context;
	if (vacant_count && vacant[vacant_count - 1].size == size)
		return (void *)(uintptr_t)vacant[--vacant_count].start;
	if (size > (size_t)(end - next) || (!huge && mprotect(next, size, PROT_READ | PROT_WRITE) < 0))
		return own.take(own.context, size);
	char *const at = next;
	next += size;
	return at;
}

static void give_huge(void *context, void *at, size_t size)
{
	(void)context;
	if ((char *)at < first || (char *)at >= end || vacant_count == LW_MOST_VACANT) {
		own.give(own.context, at, size);
		return;
	}
	madvise(at, size, MADV_DONTNEED);
	vacant[vacant_count++] = (struct lw_range){ .start = (uintptr_t)at, .size = size };
}

static bool possible(void)
{
	if (!get_arenas)
		*(void **)&get_arenas = dlsym(RTLD_DEFAULT, "PyObject_GetArenaAllocator");
	if (!set_arenas)
		*(void **)&set_arenas = dlsym(RTLD_DEFAULT, "PyObject_SetArenaAllocator");
	return get_arenas && set_arenas && !first;
}

static void begin(char *at, size_t room)
{
	first = next = at;
	end = first + room;
	get_arenas(&own);
	struct arena_allocator gathering = { .context = own.context, .take = take, .give = huge ? give_huge : own.give };
	set_arenas(&gathering);
}

/* Have the interpreter put its next arenas side by side, *room* bytes at most. May succeed only once in a process.
 * Returns false, and changes nothing, if the interpreter has no arenas or the memory can't be reserved. */
bool lw_arenas_gather(size_t room)
{
	if (!possible())
		return false;
	void *const at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return false;
	begin(at, room);
	return true;
}

/* The same, for as long as the process lives, with huge pages. *room* must be a multiple of 2 MiB. */
bool lw_arenas_gather_huge(size_t room)
{
	if (!possible() || !room || room % LW_HUGE_PAGE)
		return false;
	char *const at = mmap(NULL, room + LW_HUGE_PAGE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if ((void *)at == MAP_FAILED)
		return false;
	size_t const before = (LW_HUGE_PAGE - (uintptr_t)at % LW_HUGE_PAGE) % LW_HUGE_PAGE;
	if (before)
		munmap(at, before);
	munmap(at + before + room, LW_HUGE_PAGE - before);
	madvise(at + before, room, MADV_HUGEPAGE); /* Linux 2.6.38; a kernel built without them says EINVAL */
	huge = true;
	begin(at + before, room);
	return true;
}

/* Set the interpreter's own allocator again. Returns the range of the gathered arenas, some of which may be unmapped. */
struct lw_range lw_arenas_gathered(void)
{
	const struct lw_range gathered = { .start = (uintptr_t)first, .size = (uint64_t)(next - first) };

	if (end != next)
		munmap(next, (size_t)(end - next));
	if (first)
		set_arenas(&own);
	end = next;
	return gathered;
}
