#pragma once

#include <stdint.h>

int lw_argument_value(const char *name, uint32_t *ret_value);
