/* The locks of a new runner: system calls from a table.
 *
 * Runs in:  the job's process, before any code of a job. The table is made in the zygote. Executing it writes almost no
 *           memory, each page of which a fresh clone copies first: the same steps in bytecode cost 300 such pages. */

#include "steps.h"

#include "raw.h"

/* Make the calls in order, up to the first whose result isn't allowed, which is in *ret_result. Returns how many were. */
uint32_t lw_run_steps(const struct lw_step *steps, uint32_t count, int64_t *ret_result)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct lw_step *step = &steps[i];
		long values[LW_STEP_ARGUMENTS];

		for (uint32_t k = 0; k < LW_STEP_ARGUMENTS; k++)
			values[k] = step->loaded & (1U << k)
				? *(const int32_t *)(uintptr_t)step->arguments[k]
				: (long)step->arguments[k];
		long result = raw((long)step->call, values[0], values[1], values[2], values[3], values[4]);
		if (step->gives < LW_GIVES_ANYTHING && !(step->gives && result >= 0) && result != step->answers[0] && result != step->answers[1]
		    && result != step->answers[2]) {
			*ret_result = result;
			return i;
		}
		if (step->into)
			*step->into = (int32_t)result;
	}
	return count;
}
