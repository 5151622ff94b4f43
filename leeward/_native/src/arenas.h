/* Where CPython puts its arenas. See arenas.c. */
#ifndef LW_ARENAS_H
#define LW_ARENAS_H

#include "snapshot.h"

#include <stdbool.h>
#include <stddef.h>

bool lw_arenas_gather(size_t room);
bool lw_arenas_gather_huge(size_t room);
struct lw_range lw_arenas_gathered(void);

#endif
