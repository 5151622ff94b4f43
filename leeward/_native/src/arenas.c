/* Puts CPython's arenas side by side, at known addresses.
 *
 * Runs in:  the zygote, from its first line until it has imported everything.
 * Source:   PyObject_SetArenaAllocator: docs.python.org/3/c-api/memory.html; Objects/obmalloc.c
 *
 * Theory of operation. CPython allocates memory for small objects in arenas, by mmap, and frees a whole arena by munmap.
 * Normally the kernel places arenas between libraries, and they can't be told from memory that a library has mapped. Here
 * each arena is the next piece of one reservation. Afterwards the interpreter's own allocator is set again; its munmap
 * works for these arenas, too. */

#include "arenas.h"

#include <stdint.h>
#include <sys/mman.h>

/* Same as PyObjectArenaAllocator, which hasn't changed since CPython 3.4 and isn't part of the limited API. */
struct arena_allocator {
	void *context;
	void *(*take)(void *context, size_t size);
	void (*give)(void *context, void *at, size_t size);
};

extern void PyObject_GetArenaAllocator(struct arena_allocator *allocator) __attribute__((weak, visibility("default")));
extern void PyObject_SetArenaAllocator(struct arena_allocator *allocator) __attribute__((weak, visibility("default")));

static struct arena_allocator own;
static char *first, *next, *end;

static void *take(void *context, size_t size)
{
	(void)context;
	if (size > (size_t)(end - next) || mprotect(next, size, PROT_READ | PROT_WRITE) < 0)
		return own.take(own.context, size);
	char *const at = next;
	next += size;
	return at;
}

/* Have the interpreter put its next arenas side by side, *room* bytes at most. May succeed only once in a process.
 * Returns false, and changes nothing, if the interpreter has no arenas or the memory can't be reserved. */
bool lw_arenas_gather(size_t room)
{
	if (!PyObject_GetArenaAllocator || !PyObject_SetArenaAllocator || first)
		return false;
	void *const at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (MAP_FAILED == at)
		return false;
	first = next = at;
	end = first + room;
	PyObject_GetArenaAllocator(&own);
	struct arena_allocator gathering = { .context = own.context, .take = take, .give = own.give };
	PyObject_SetArenaAllocator(&gathering);
	return true;
}

/* Set the interpreter's own allocator again. Returns the range of the gathered arenas, some of which may be unmapped. */
struct lw_range lw_arenas_gathered(void)
{
	const struct lw_range gathered = { .start = (uintptr_t)first, .size = (uint64_t)(next - first) };

	if (end != next)
		munmap(next, (size_t)(end - next));
	if (first)
		PyObject_SetArenaAllocator(&own);
	end = next;
	return gathered;
}
