/* Answers: from what the daemon has sent to the calls that they are for.
 *
 * Runs in:   libleeward and the command line.
 * Waits:     in lw_receive, LW_PATIENCE_S at most, and only if the caller asks for it.
 * Trust:     none. An answer to no request, a malformed frame and descriptors that weren't
 *            announced end the connection. */
#pragma once

#include <stdbool.h>

#include "leeward.h"

/* Seconds for which received bytes are still processed after a deadline. Without this bound a daemon that sends without
 * end could hold the caller for ever. */
#define LW_LOOK_S 0.1

int lw_receive(leeward_handle *handle, bool wait);
