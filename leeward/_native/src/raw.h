/* A system call and nothing else: no errno, no cancellation point, no libc. */
#pragma once

#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>

#if defined(__x86_64__)

__attribute__((always_inline))
static inline long raw6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;
	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

#elif defined(__aarch64__)

__attribute__((always_inline))
static inline long raw6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
}

#else
#error "leeward knows x86_64 and aarch64"
#endif

__attribute__((always_inline))
static inline long raw(long nr, long a, long b, long c, long d, long e)
{
	return raw6(nr, a, b, c, d, e, 0);
}

__attribute__((noreturn, always_inline))
static inline void raw_exit(long status)
{
	for (;;)
		raw(SYS_exit_group, status, 0, 0, 0, 0);
}

static inline uint64_t microseconds(const struct timeval *time)
{
	return (uint64_t)time->tv_sec * 1000000U + (uint64_t)time->tv_usec;
}
