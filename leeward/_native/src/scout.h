/* Which pages a job touches. See scout.c. */
#pragma once

#include "job.h"
#include "snapshot.h"

#include <stdint.h>

/* The descriptors that a job begins with: 0 to 2, job, reply, birth. */
#define LW_SCOUT_ENDS 6

struct lw_scout {
	const struct lw_beginning *beginning; /* or NULL */
	const struct lw_range *ranges; /* memory whose pages are reported */
	uint32_t count;
	int ends[LW_SCOUT_ENDS];       /* descriptors that are copied to 0 to 5; each has a larger number */
	int out;                       /* a memory file, also above 5, for one pagemap entry per page */
};

int lw_scout(const struct lw_scout *how);
