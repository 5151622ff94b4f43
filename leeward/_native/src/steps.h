/* System calls from a table, each with the results that it may have. See steps.c. */
#pragma once

#include <stdint.h>
#include <sys/syscall.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

#define LW_STEP_ARGUMENTS 5

/* What a step may return beside the values in `answers`. */
enum { LW_GIVES_NOTHING, LW_GIVES_SOMETHING, LW_GIVES_ANYTHING };

struct lw_step {
	uint32_t call;                    /* SYS_* */
	uint32_t loaded;                  /* bit i: argument i is the address of an int32_t, whose value is passed */
	uint64_t arguments[LW_STEP_ARGUMENTS];
	int32_t *into;                    /* where the result goes, or NULL */
	int32_t answers[3];               /* the results that it may have; errors are -errno */
	uint32_t gives;                   /* LW_GIVES_SOMETHING: any result from 0 up as well; LW_GIVES_ANYTHING: any result */
};

uint32_t lw_run_steps(const struct lw_step *steps, uint32_t count, int64_t *ret_result);
