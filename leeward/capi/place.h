/* Where the daemon of this process's user listens.
 *
 * Runs in:   libleeward. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

int lw_place(const char *path, char **ret_path);
int lw_place_named(const char *content, size_t length, const char **ret_value, size_t *ret_length);
