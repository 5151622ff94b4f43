/* What the command line asks of the library beyond leeward.h.
 *
 * Runs in:   the command line, which is linked with the library's objects. */
#pragma once

#include "leeward.h"
#include "wire.h"

int lw_status(leeward_handle *handle, double timeout, struct lw_value *ret_map);
