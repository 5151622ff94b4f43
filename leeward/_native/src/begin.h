/* From a runner's last lock to its job, in C. See begin.c. */
#ifndef LW_BEGIN_H
#define LW_BEGIN_H

#include <stdbool.h>
#include <stdint.h>

/* What is the same for every runner. */
struct lw_beginning {
	const uint8_t *ready; /* the message that the runner is ready */
	uint32_t size;
	int birth;            /* the channel on which it is sent; closed afterwards */
	void *renew;          /* a borrowed PyObject, which is called without arguments before that */
};

bool lw_job_begin(const struct lw_beginning *how);

#endif
