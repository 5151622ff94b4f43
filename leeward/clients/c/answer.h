/* Answers about live sandboxes: from a reply to pieces of output and lists.
 *
 * Runs in:   libleeward. Pure but for malloc and free.
 * Trust:     none. Names and output come from the programs in the sandbox. The type and size of each field are checked, and
 *            lists are copies. leeward/wire/sandbox_replies.py and file_answers.py are the same for Python. */
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

/* The rows of a list, each in memory of its own. */
struct lw_rows {
	void **all;
	size_t count;
};

bool lw_is_id(const void *text, size_t length);
bool lw_chunks_check(const struct lw_value *chunks, int64_t after);
void lw_chunk_next(struct lw_value *chunks, leeward_chunk *ret_chunk);

/* Make one row of the value that an answer has for it. They return 0, -EBADMSG or -ENOMEM. */
typedef int lw_make(const struct lw_value *value, void **ret_row);
lw_make lw_sandbox_make, lw_entry_make, lw_name_make, lw_match_make;

int lw_row_add(struct lw_rows *rows, const struct lw_value *value, lw_make *make);
int lw_rows_add(struct lw_rows *rows, const struct lw_value *values, lw_make *make);
void *lw_list(struct lw_rows *rows, size_t size, int failed);
