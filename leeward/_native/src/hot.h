/* Pages that each job writes. See hot.c. */
#ifndef LW_HOT_H
#define LW_HOT_H

#include <stdbool.h>
#include <stdint.h>

struct lw_range {
	uint64_t start, size; /* of whole pages; as struct iovec where pointers have 64 bits */
};

bool lw_hot_pin(const struct lw_range *pages, uint32_t count);

#endif
