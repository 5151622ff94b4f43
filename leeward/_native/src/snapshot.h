/* Replaces private memory by private mappings of a memory file. See snapshot.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct lw_range {
	uint64_t start, size; /* of whole pages; as struct iovec where pointers have 64 bits */
};

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
int lw_huge_pages(int file, uint64_t from, uint64_t size);
int lw_snapshot_take(int file, const struct lw_snapshot_part *parts, uint32_t count, bool huge);
bool lw_hot_pin(const struct lw_range *pages, uint32_t count);
void lw_snapshot_drop(const struct lw_snapshot_parts *taken);
