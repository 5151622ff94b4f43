/* What a job shows: the part of a result that is in MIME types.
 *
 * Runs in:   libleeward and the command line. Pure but for calloc.
 * Trust:     none. It is the job's own: type, number and size are checked, and nobody here interprets it. */
#pragma once

#include "leeward.h"
#include "reply.h"

const char *lw_shown_read(const struct lw_reply *reply, leeward_result *result, leeward_shown **ret_things,
			  leeward_form **ret_forms);
