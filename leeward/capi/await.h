/* Waiting for an answer, and what is done about a daemon that is silent.
 *
 * Runs in:   libleeward and the command line.
 * Waits:     as long as it is told. After LW_PATIENCE_S without a byte it pings, and after as
 *            long again the daemon is taken for gone. */
#pragma once

#include <stdint.h>

#include "calls.h"

struct lw_call *lw_await(leeward_handle *handle, int64_t id, double until);
struct lw_call *lw_await_last(leeward_handle *handle, double until);
