/* Sending requests, and connecting first if there is no connection.
 *
 * Runs in:   libleeward and the command line.
 * Waits:     until the socket takes a request, at most LW_PATIENCE_S without progress; answers are received meanwhile. Small requests
 *            (lw_nudge_*) are sent at once; if there is no room for them the connection is closed. */
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
