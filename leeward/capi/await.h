/* Waiting for an answer, and detecting a daemon that doesn't respond.
 *
 * Runs in:   libleeward and the command line.
 * Waits:     as long as the caller says. After LW_PATIENCE_S without a byte a ping is sent, and after
 *            as long again the call fails. */
#pragma once

#include <stdint.h>

#include "calls.h"

struct lw_call *lw_await(leeward_handle *handle, int64_t id, double until);
struct lw_call *lw_await_last(leeward_handle *handle, double until);
