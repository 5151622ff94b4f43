/* Replies: from a frame to a result that the caller owns.
 *
 * Runs in:   libleeward and the command line. Pure but for munmap and free.
 * Trust:     none. A reply is read as if a job had written it: the type and size of each field are checked, offsets must lie
 *            inside their memory files, and no name from a reply is looked up anywhere. leeward/wire/replies.py is the
 *            same for Python. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "leeward.h"
#include "operations.h"
#include "wire.h"

/* One answer: the map `ok`, or a refusal's kind and message. All texts point into the payload. */
struct lw_reply {
	int64_t id; /* 0: about the connection */
	bool refused;
	bool silent; /* a result without output: an answer to process_wait */
	struct lw_value ok, kind, message;
	double retry_after; /* of a refusal: seconds, or below 0 if the daemon named none */
	size_t arena_count;
	size_t arenas[LW_MAX_ARENAS]; /* sizes in bytes */
};

/* A memory file, mapped. */
struct lw_mapping {
	void *start;
	size_t length;
};

/* Read the map of an answer to *op* into its struct, which is zero. False if a field is missing or of another type. */
#define LW_READ(map, op, ret_answer) \
	lw_answer_read(map, lw_fields_##op##_answer, LW_COUNT(lw_fields_##op##_answer), \
		       (struct lw_##op##_answer *){ret_answer})

bool lw_answer_read(const struct lw_value *map, const struct lw_field *fields, size_t count, void *ret_answer);
bool lw_parts_read(const struct lw_value *array, struct lw_value *ret_parts, uint32_t count);
void lw_row_next(struct lw_value *rows, struct lw_value *ret_row);
int lw_reply_read(const uint8_t *payload, size_t length, struct lw_reply *ret_reply, const char **ret_wrong);
int lw_result_make(const struct lw_reply *reply, uint8_t *block, const struct lw_mapping mappings[LW_MAX_ARENAS],
		   leeward_result **ret_result, const char **ret_wrong);
void lw_unmap(struct lw_mapping mappings[LW_MAX_ARENAS]);
