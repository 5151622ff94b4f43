/* System calls from a table, each with what it must return. See steps.c. */
#ifndef LW_STEPS_H
#define LW_STEPS_H

#include <stdint.h>
#include <sys/syscall.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

#define LW_STEP_ARGUMENTS 5

/* What a step may return beside its answers. */
enum { LW_GIVES_NOTHING, LW_GIVES_SOMETHING, LW_GIVES_ANYTHING };

struct lw_step {
	uint32_t call;                    /* SYS_* */
	uint32_t loaded;                  /* bit i: argument i is the address of the int32_t that is meant */
	uint64_t arguments[LW_STEP_ARGUMENTS];
	int32_t *into;                    /* where the result goes, or NULL */
	int32_t answers[3];               /* what it has to return: one of these, an errno negative */
	uint32_t gives;                   /* or more than these: LW_GIVES_SOMETHING whatever isn't negative */
};

uint32_t lw_run_steps(const struct lw_step *steps, uint32_t count, int64_t *ret_result);

#endif
