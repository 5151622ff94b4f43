/* Which pages a job touches. See scout.c. */
#ifndef LW_SCOUT_H
#define LW_SCOUT_H

#include "begin.h"
#include "hot.h"

#include <stdint.h>

/* The descriptors that a job begins with: 0 to 2, job, reply, birth. */
#define LW_SCOUT_ENDS 6

struct lw_scout {
	const struct lw_beginning *beginning; /* or NULL */
	const struct lw_range *ranges; /* memory that is looked at */
	uint32_t count;
	int ends[LW_SCOUT_ENDS];       /* what these descriptors are copies of, each above them */
	int out;                       /* a memory file, above them too: an entry of pagemap for each page */
};

int lw_scout(const struct lw_scout *how);

#endif
