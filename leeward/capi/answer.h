/* Answers about live sandboxes: from a reply to numbers, pieces of output, lists.
 *
 * Runs in:   libleeward. Pure but for malloc and free.
 * Trust:     none. Names and output come from the programs in the sandbox. The type and size of each field are checked, and
 *            lists are copies. leeward/wire/sandbox_replies.py and file_replies.py are the same for Python. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "leeward.h"
#include "reply.h"
#include "wire.h"

/* Characters of a sandbox's id. */
#define LW_ID 26
/* Bytes of a path, without its NUL. */
#define LW_MAX_PATH 4095

bool lw_is_id(const uint8_t *text, size_t length);
bool lw_answer_whole(const struct lw_reply *reply, const char *name, int64_t least, int64_t *ret_number);
bool lw_answer_flag(const struct lw_reply *reply, const char *name, bool *ret_flag);
bool lw_chunks_check(const struct lw_reply *reply, int64_t after, struct lw_value *ret_chunks);
void lw_chunk_next(struct lw_value *chunks, leeward_chunk *ret_chunk);

/* Lists, to which each reply adds rows. These functions return 0, -EBADMSG or -ENOMEM. */
int lw_sandboxes_add(leeward_sandboxes **list, const struct lw_value *row);
int lw_entries_add(leeward_entries **list, const struct lw_value *row, const char *after);
int lw_names_make(const struct lw_value *rows, leeward_names **ret_names);
int lw_matches_make(const struct lw_value *rows, leeward_matches **ret_matches);
