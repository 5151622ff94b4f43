/* Replaces private memory by private mappings of a memory file. See snapshot.c. */
#ifndef LW_SNAPSHOT_H
#define LW_SNAPSHOT_H

#include "hot.h"

#include <stdbool.h>
#include <stdint.h>

struct lw_snapshot_part {
	struct lw_range pages;
	int protection; /* PROT_* */
};

/* What a keeper needs for lw_snapshot_drop. */
struct lw_snapshot_parts {
	const struct lw_snapshot_part *parts;
	uint32_t count;
	int map; /* the keeper's own /proc/PID/pagemap, or -1 */
};

uint64_t lw_thread_storage(void);
int lw_snapshot_take(int file, const struct lw_snapshot_part *parts, uint32_t count, bool huge);
void lw_snapshot_drop(const struct lw_snapshot_parts *taken);

#endif
