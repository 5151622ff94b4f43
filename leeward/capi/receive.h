/* Answers: from what the daemon has sent to the calls that they are for.
 *
 * Runs in:   libleeward and the command line.
 * Waits:     in lw_receive, LW_PATIENCE_S at most, and only if it is told to.
 * Trust:     none. An answer to nobody, a frame that is none and descriptors that weren't
 *            announced end the connection. */
#pragma once

#include <stdbool.h>

#include "leeward.h"

/* Seconds that what is there is taken for, once the time is over: bytes that never cease would go on for ever. */
#define LW_LOOK_S 0.1

int lw_receive(leeward_handle *handle, bool wait);
