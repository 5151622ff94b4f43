/* Requests on their way to the daemon, and the connection that is made for them.
 *
 * Runs in:   libleeward and the command line.
 * Waits:     for the daemon to take a request, LW_PATIENCE_S without a sign of it at most,
 *            and takes answers meanwhile. A ping, a cancel and a request for output of its own it sends or not, at once. */
#pragma once

#include <stdint.h>

#include "calls.h"
#include "request.h"

int lw_send_request(leeward_handle *handle, enum lw_op op, double until);
int lw_send_plain(leeward_handle *handle, enum lw_op op, double until);
int lw_send_cancel(leeward_handle *handle, int64_t id, enum lw_end how);
int lw_nudge_ping(leeward_handle *handle);
int lw_nudge_output(leeward_handle *handle, int64_t id, const uint64_t taken[2]);
int lw_nudge_cancel(leeward_handle *handle, int64_t id, enum lw_end how);
