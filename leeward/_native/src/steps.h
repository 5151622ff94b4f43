/* System calls from a table, each with what it must return. See steps.c. */
#ifndef LW_STEPS_H
#define LW_STEPS_H

#include <stdint.h>
#include <sys/syscall.h>

#define LW_STEP_ARGUMENTS 5

struct lw_step {
	uint32_t call;                    /* SYS_* */
	uint32_t loaded;                  /* bit i: argument i is the address of the int32_t that is meant */
	uint64_t arguments[LW_STEP_ARGUMENTS];
	int32_t *into;                    /* where the result goes, or NULL */
	int32_t answers[2];               /* what it has to return: one of these */
	uint32_t gives;                   /* not 0: a descriptor or the like, whatever isn't negative */
};

uint32_t lw_run_steps(const struct lw_step *steps, uint32_t count, int64_t *ret_result);

#endif
