/* CPython's arenas, side by side and known.
 *
 * Runs in:  the zygote, from its first line until it has imported everything.
 * Source:   PyObject_SetArenaAllocator: docs.python.org/3/c-api/memory.html; Objects/obmalloc.c
 *
 * Theory of operation. CPython takes memory for small objects in arenas, by mmap, and gives an arena back whole, by
 * munmap. One by one they lie between libraries, and nobody can tell them from what a library has mapped for itself.
 * Here each is the next piece of one reservation. When no more are gathered the interpreter's own allocator is back:
 * its munmap is right for these arenas as well. */

#include "arenas.h"

#include <stdint.h>
#include <sys/mman.h>

/* As PyObjectArenaAllocator, which is the same from CPython 3.4 on and no part of the limited API. */
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

/* Have the interpreter put its arenas side by side, as far as *room* bytes go, and call this no second time. False where
 * it has no arenas, or there is no room; nothing is changed then. */
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

/* The interpreter's own allocator is back. Returns where gathered arenas are; some may have been given back. */
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
