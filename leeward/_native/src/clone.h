/* clone3(2): its arguments, and a child on a stack of its own. */
#pragma once

#include <linux/sched.h>
#include <stdint.h>
#include <sys/syscall.h>

/* Linux 5.5 and 5.7; older headers lack the flags and the field. */
#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

struct clone_request {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal;
	uint64_t stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

#if defined(__x86_64__)

/* clone3 with the child on a stack of its own. The child calls *entry*, which must not return. */
static inline long clone3_onto(struct clone_request *request, void (*entry)(void *), void *argument)
{
	/* Not in rbp, which the child clears so that stack walkers stop there. */
	register void (*to)(void *) __asm__("rdx") = entry;
	register void *with __asm__("r8") = argument;
	long ret;
	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %[with], %%rdi\n\t"
			 "call *%[to]\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(ret)
			 : "a"((long)SYS_clone3), "D"(request), "S"(sizeof(*request)),
			   [to] "r"(to), [with] "r"(with)
			 : "rcx", "r11", "memory");
	return ret;
}

#define RSEQ_SIGNATURE 0x53053053U

#elif defined(__aarch64__)

static inline long clone3_onto(struct clone_request *request, void (*entry)(void *), void *argument)
{
	register long x8 __asm__("x8") = SYS_clone3;
	register long x0 __asm__("x0") = (long)request;
	register long x1 __asm__("x1") = sizeof(*request);
	/* Not in x29, which the child clears so that stack walkers stop there. */
	register void (*to)(void *) __asm__("x3") = entry;
	register void *with __asm__("x4") = argument;
	__asm__ volatile("svc 0\n\t"
			 "cbnz x0, 1f\n\t"
			 "mov x29, xzr\n\t"
			 "mov x0, %[with]\n\t"
			 "blr %[to]\n\t"
			 "brk #1\n"
			 "1:"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), [to] "r"(to), [with] "r"(with)
			 : "x30", "memory");
	return x0;
}

#define RSEQ_SIGNATURE 0xd428bc00U

#endif
