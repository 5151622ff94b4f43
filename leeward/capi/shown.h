/* What a job has displayed, by MIME types.
 *
 * Runs in:   libleeward and the command line. Pure but for calloc.
 * Trust:     none. It comes from the job: type, number and size are checked, and the content isn't interpreted. */
#pragma once

#include "leeward.h"
#include "reply.h"

const char *lw_shown_read(const struct lw_reply *reply, leeward_result *result, leeward_shown **ret_things,
			  leeward_form **ret_forms);
