/* When the C library gives memory back to the kernel, and where CPython puts its arenas. See heap.c. */
#pragma once

#include "snapshot.h"

#include <stdbool.h>
#include <stddef.h>

int lw_heap_give_back(size_t threshold);
bool lw_arenas_gather(size_t room);
bool lw_arenas_gather_huge(size_t room);
struct lw_range lw_arenas_gathered(void);
