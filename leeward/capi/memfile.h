/* Memory files that come over a connection: those that results lie in, and the arena for large requests.
 *
 * Runs in:   libleeward and the command line.
 * Trust:     none. The kernel is asked for a file's size and seals before one byte of it is read; an
 *            arena is only written, by pwrite(2), which a file that shrinks can't turn into a SIGBUS. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "link.h"
#include "reply.h"

int lw_memfile_map(struct lw_link *link, const struct lw_reply *reply, struct lw_mapping ret_mappings[LW_MAX_ARENAS]);
const char *lw_dock_take(struct lw_link *link, const struct lw_reply *reply, int *ret_socket);
const char *lw_arena_take(struct lw_link *link, const struct lw_reply *reply);
int lw_arena_put(struct lw_link *link, const uint8_t *payload, size_t length);
void lw_arena_free_slot(struct lw_link *link, int slot);
