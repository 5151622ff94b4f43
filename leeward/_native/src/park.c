/* The first process of a live sandbox: it keeps the sandbox's init alive, gets no job, and so needs no memory.
 *
 * Runs in:  that process, after its last lock, in place of its interpreter. It ends when it is killed.
 *
 * It unmaps all but a page or two of this code and of its stack. From the first unmapping on nothing may use libc, the
 * thread's storage or a variable that isn't in a register or on this stack. */

#include "park.h"

#include "clone.h"
#include "raw.h"

#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RSEQ_UNREGISTER 1

extern const long __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

/* The kernel writes into this thread's area whenever it runs again, and kills a process whose area isn't mapped. */
static void leave_rseq(void)
{
	if (&__rseq_size && __rseq_size)
		raw(SYS_rseq, (long)((char *)__builtin_thread_pointer() + __rseq_offset), 32, RSEQ_UNREGISTER,
		    RSEQ_SIGNATURE, 0);
}

/* Unmap what lies above *from*, whatever the size of an address space is here: the kernel refuses an end beyond it. */
__attribute__((always_inline))
static inline void unmap_above(unsigned long from, unsigned long page)
{
	for (unsigned bits = 52; bits >= 38; bits--)
		for (unsigned long end = 1UL << bits, less = 0; less <= page; less += page)
			if (end - less > from && raw(SYS_munmap, (long)from, (long)(end - less - from), 0, 0, 0) == 0)
				return;
}

/* *page*: the bytes of one here. The kernel rounds a length up to pages, which might be this stack's. */
__attribute__((noreturn, noinline, aligned(512), no_stack_protector, no_sanitize("address", "undefined", "thread")))
static void wait_alone(unsigned long page)
{
	const unsigned long code = (unsigned long)(uintptr_t)wait_alone & ~(page - 1), code_end = code + 2 * page;
	const unsigned long here = (unsigned long)(uintptr_t)__builtin_frame_address(0) & ~(page - 1);
	const unsigned long stack = here - page, stack_end = here + 2 * page;
	const unsigned long low = code < stack ? code : stack, low_end = code < stack ? code_end : stack_end;
	const unsigned long high = code < stack ? stack : code, high_end = code < stack ? stack_end : code_end;

	raw(SYS_munmap, (long)page, (long)(low - page), 0, 0, 0);
	raw(SYS_munmap, (long)low_end, (long)(high - low_end), 0, 0, 0);
	unmap_above(high_end, page);
	for (;;)
		raw(SYS_ppoll, 0, 0, 0, 0, 0);
}

/* Let go of all memory, and wait to be killed. No handler of a signal could run any more, so all signals are blocked. */
void lw_park(void)
{
	const unsigned long page = (unsigned long)sysconf(_SC_PAGESIZE);
	uint64_t all = ~0ULL;

	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, sizeof(all), 0);
	leave_rseq();
	wait_alone(page);
}
