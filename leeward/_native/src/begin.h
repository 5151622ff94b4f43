/* From a runner's last lock to its job, in C. See begin.c. */
#ifndef LW_BEGIN_H
#define LW_BEGIN_H

#include <stdbool.h>
#include <stdint.h>

/* What is the same for every runner. */
struct lw_beginning {
	const uint8_t *ready; /* the message */
	uint32_t size;
	int birth;            /* the channel that it is sent by, closed then */
	void *renew;          /* the PyObject, borrowed, that is called without arguments before */
};

bool lw_job_begin(const struct lw_beginning *how);

#endif
