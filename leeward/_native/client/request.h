/* Requests: from a caller's options to a frame.
 *
 * Runs in:   libleeward and the command line. Pure.
 * Checks:    what would crash or break the frame: pointers, text that is no UTF-8, the size
 *            of a frame. What a value may be is the daemon's to say, once for all languages. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "leeward.h"
#include "wire.h"

int lw_options_read(const leeward_options *given, leeward_options *ret_options);
int lw_request_execute(struct lw_buffer *buffer, int64_t id, const char *code, size_t length,
		       const leeward_options *options);
int lw_request_plain(struct lw_buffer *buffer, int64_t id, const char *op);
int lw_request_slot(struct lw_buffer *buffer, int64_t id, int slot, size_t length);
int lw_request_cancel(struct lw_buffer *buffer, int64_t id, int64_t target);
