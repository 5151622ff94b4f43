/* What is in a state's memory file. Runs in: the job alone, which trusts itself; nobody else reads it. */
#pragma once

#include "raw.h"
#include "state.h"

#include <stddef.h>
#include <stdint.h>

#define PAGE 4096UL
#define LW_STATE_MAGIC 0x316574617473776cUL /* "lwstate1" */
#define SIGNALS 64
#define UNCHECKED __attribute__((no_sanitize("address", "undefined", "thread")))

enum { ANONYMOUS = 0, OF_FILE = 1, OF_KERNEL = 2, OF_MEMORY = 3 /* the zygote's memory file */ };
enum { GROWS_DOWN = 1, WIPED = 2 /* in children: MADV_WIPEONFORK */ };

struct action {
	uint64_t handler, flags, restorer, mask;
};

/* The first page. All offsets are of the file. */
struct head {
	uint64_t magic, size;
	uint64_t parts, files, runs, names; /* offsets of the tables */
	uint32_t part_count, file_count, run_count, name_size;
	uint64_t state;        /* address of the struct lw_state */
	uint64_t memory;       /* not 0: the zygote's memory file is needed */
	uint64_t registers[9];
	uint64_t thread_pointer, brk, first_brk;
	uint64_t stack_at, stack_size;
	uint32_t stack_flags;
	struct action actions[SIGNALS];
};

/* A mapping. */
struct part {
	uint64_t start, end, offset;
	uint32_t kind, protection, flags, file;
	uint32_t first, count; /* of its runs */
	uint64_t touched;      /* bytes that aren't the file's, nor zero: what the kernel counts */
};

/* A file that is mapped, and was found by its name. */
struct file {
	uint64_t device, inode, size, seconds, nanoseconds;
	uint32_t name, length; /* in the names */
};

/* Pages side by side whose content is in the file. */
struct run {
	uint64_t start, size, at;
};

_Static_assert(sizeof(struct head) <= PAGE, "the head is one page");

static inline uint64_t pages(uint64_t size)
{
	return (size + PAGE - 1) & ~(PAGE - 1);
}

static inline int failed(long result)
{
	return result < 0 && result > -4096;
}

/* As memcpy, without a call that goes through a table which may be overwritten. */
UNCHECKED static inline void copy(void *to, const void *from, size_t size)
{
#if defined(__x86_64__)
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
#else
	for (size_t i = 0; i < size; i++) {
		((volatile char *)to)[i] = ((const volatile char *)from)[i];
	}
#endif
}

/* The mappings of this process, as /proc/self/smaps shows them. */
struct mapping {
	uint64_t start, end, offset, inode, touched;
	uint32_t protection, flags, shared;
	const char *name; /* ends with a newline; "" for memory */
	uint32_t length;
};

long read_all(const char *path, char *into, size_t size);
const char *next_mapping(const char *at, const char *end, struct mapping *ret);
uint64_t first_brk(void);
