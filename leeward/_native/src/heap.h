/* When the C library gives memory back to the kernel. See heap.c. */
#ifndef LW_HEAP_H
#define LW_HEAP_H

#include <stddef.h>

int lw_heap_give_back(size_t threshold);

#endif
