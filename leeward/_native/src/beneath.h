/* Opening files below a folder. See beneath.c. */
#pragma once

#include <stdint.h>

int lw_open_beneath(int folder, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve);
