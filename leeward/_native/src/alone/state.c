/* The dump of a state as an object by itself, for the interpreter of an image: it needs no C library, and takes of the one that
 * is there what it finds (__curbrk, __rseq_offset). build_ffi.py compiles it, and puts its bytes into the shim.
 *
 * Runs in:  an image's interpreter, after every lock, which maps it by ctypes when its kernel's first snapshot is taken. The
 *           loader isn't needed there: a copy begins in a process of the host's interpreter, which becomes the image's.
 *
 * A copy may be in another sandbox, whose root is another overlay, so that no file of it is known by its number. All files
 * are taken as memory. */

#include "../reborn.c"
#include "../state_dump.c"
#include "../state_maps.c"

#if defined(__x86_64__)

/* The compiler calls these by themselves. */
__attribute__((visibility("hidden"))) void *memset(void *at, int value, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((volatile char *)at)[i] = (char)value;
	return at;
}

__attribute__((visibility("hidden"))) void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
	copy(to, from, size);
	return to;
}

#endif

static struct lw_state state;

/* As lw_state_dump. Returns in a copy what its loader was given, or -errno. */
__attribute__((visibility("default"))) int64_t lw_alone_dump(int orders, int answers, int gate, int number);
int64_t lw_alone_dump(int orders, int answers, int gate, int number)
{
	const int64_t done = lw_state_dump(&state, orders, answers, LW_EVERY_FILE, -1, gate, number);

	return done < 0 ? done : state.word;
}
